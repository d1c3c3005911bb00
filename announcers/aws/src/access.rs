//! How the SDK gets its region, endpoint and credentials.

use answerback_contract::settings::Settings;
use answerback_contract::{ConnectError, Connecting, Field};
use aws_config::sts::AssumeRoleProvider;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_http_client::{Builder, tls};
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use aws_types::SdkConfig;
use std::time::Duration;

/// The key `region`.
pub const REGION: Field = Field {
    key: "region",
    required: false,
    help: "AWS region. Default: the one in the ARN or queue URL, else the SDK's (AWS_REGION, \
           profile, instance)",
};

/// The key `endpoint_url`.
pub const ENDPOINT_URL: Field = Field {
    key: "endpoint_url",
    required: false,
    help: "Another endpoint than the region's: an emulator or a VPC endpoint. http:// or https://",
};

/// The key `role_arn`.
pub const ROLE_ARN: Field = Field {
    key: "role_arn",
    required: false,
    help: "IAM role to assume with the SDK's default credentials; renewed before it ends",
};

/// Connections kept open to one host between calls. More may be in use at once; the rest are closed
/// as they become idle.
const IDLE_CONNECTIONS: usize = 256;

/// Shorter than AWS's own 20 s and more, so that hardly a call meets a connection that the other
/// side has just closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// The most that connecting may take of an attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long before their end credentials are renewed. Longer than any attempt, so that a signed
/// request never arrives with expired ones.
const RENEW_BEFORE: Duration = Duration::from_secs(120);

/// Where and as whom to call AWS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The configured region.
    pub region: Option<String>,
    /// The configured endpoint.
    pub endpoint_url: Option<String>,
    /// The role to assume.
    pub role_arn: Option<String>,
    /// The endpoint when none is configured, here or in the environment: that of an emulator's
    /// queue URL.
    pub fallback_endpoint: Option<String>,
}

impl Access {
    /// Takes `region`, `endpoint_url` and `role_arn`. Pure; problems go into `settings`.
    pub fn read(settings: &mut Settings) -> Self {
        let region = checked(settings, "region", is_region, "an AWS region such as eu-west-1");
        let endpoint_url = checked(
            settings,
            "endpoint_url",
            |url| origin(url).is_some(),
            "a URL such as http://127.0.0.1:4566, without a user part",
        );
        let role_arn = checked(
            settings,
            "role_arn",
            |arn| arn.starts_with("arn:") && arn.contains(":iam:") && arn.contains(":role/"),
            "the ARN of a role such as arn:aws:iam::111122223333:role/answerback",
        );
        Self { region, endpoint_url, role_arn, fallback_endpoint: None }
    }

    /// The SDK's configuration: one attempt a call and a bound on it, TLS by rustls, the role
    /// assumed when there is one. Reads the environment and the profile files; asks the instance's
    /// metadata service only for a region that is nowhere else.
    ///
    /// # Errors
    /// When there is no region.
    pub async fn load(&self, connecting: &Connecting) -> Result<SdkConfig, ConnectError> {
        let attempt = connecting.attempt_timeout;
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(attempt.min(CONNECT_TIMEOUT))
            .operation_attempt_timeout(attempt)
            .operation_timeout(attempt)
            .build();
        let http = Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build_https();
        let cache = aws_config::identity::IdentityCache::lazy()
            .buffer_time(RENEW_BEFORE)
            .load_timeout(attempt)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .identity_cache(cache)
            // Bodies are small and every attempt has its own bound.
            .stalled_stream_protection(
                aws_config::stalled_stream_protection::StalledStreamProtectionConfig::disabled(),
            );
        if let Some(region) = &self.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(url) = &self.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        let mut config = loader.load().await;
        if config.endpoint_url().is_none()
            && let Some(url) = &self.fallback_endpoint
        {
            config = config.into_builder().endpoint_url(url).build();
        }
        if config.region().is_none() {
            if config.endpoint_url().is_none() {
                return Err(ConnectError {
                    what: format!(
                        "{}: no AWS region; set region, or AWS_REGION in the environment",
                        connecting.name
                    ),
                    source: None,
                });
            }
            // Emulators take any.
            config = config.into_builder().region(Region::from_static("us-east-1")).build();
        }
        match &self.role_arn {
            Some(role) => Ok(assume(config, role, &connecting.name).await),
            None => Ok(config),
        }
    }
}

/// The same configuration with the role's credentials. The clients' identity cache renews them.
async fn assume(config: SdkConfig, role: &str, name: &str) -> SdkConfig {
    let for_sts = match config.endpoint_url() {
        // A VPC endpoint serves its own service only; STS stays where the region has it.
        Some(url) if is_aws_host(url) => {
            let mut builder = config.to_builder();
            builder.set_endpoint_url(None);
            builder.build()
        }
        _ => config.clone(),
    };
    let provider = AssumeRoleProvider::builder(role)
        .configure(&for_sts)
        .session_name(session_name(name))
        .build()
        .await;
    config.into_builder().credentials_provider(SharedCredentialsProvider::new(provider)).build()
}

/// 2 to 64 characters of `[A-Za-z0-9_+=,.@-]` (STS API reference, `RoleSessionName`).
fn session_name(name: &str) -> String {
    let taken = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
    let name = name.chars().map(|c| if taken(c) { c } else { '-' });
    "answerback-".chars().chain(name).take(64).collect()
}

fn checked(
    settings: &mut Settings,
    key: &'static str,
    right: impl Fn(&str) -> bool,
    wanted: &str,
) -> Option<String> {
    let setting = settings.take(key)?;
    let place = setting.place;
    match setting.value {
        answerback_contract::settings::Value::String(text) if right(&text) => Some(text),
        _ => {
            settings.problem(key, place, format!("must be {wanted}"));
            None
        }
    }
}

fn is_region(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Scheme, host and port of an http URL without a user part.
#[must_use]
pub(crate) fn origin(url: &str) -> Option<&str> {
    let scheme = ["http://", "https://"].into_iter().find(|scheme| url.starts_with(scheme))?;
    let rest = &url[scheme.len()..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = &rest[..end];
    let plain = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b));
    plain.then(|| &url[..scheme.len() + end])
}

/// Whether a URL's host is AWS's own.
fn is_aws_host(url: &str) -> bool {
    let Some(origin) = origin(url) else { return false };
    let host = origin.split_once("://").map_or(origin, |(_, host)| host);
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"].iter().any(|end| host.ends_with(end))
}

/// The region of an ARN, when it names one.
#[must_use]
pub fn region_of_arn(arn: &str) -> Option<String> {
    let region = arn.strip_prefix("arn:")?.split(':').nth(2)?;
    is_region(region).then(|| region.to_owned())
}

impl Access {
    /// Fills in what a queue's URL tells: the region of an AWS host, the endpoint of another.
    #[must_use]
    pub fn with_queue_url(mut self, url: &str) -> Self {
        if is_aws_host(url) {
            let host = url.split_once("://").map_or(url, |(_, rest)| rest);
            let mut labels = host.split('.');
            let region = match (labels.next(), labels.next()) {
                (Some("sqs" | "sqs-fips"), Some(region)) => Some(region),
                (Some(region), Some("queue")) => Some(region),
                _ => None,
            };
            if self.region.is_none() {
                self.region = region.filter(|r| is_region(r)).map(str::to_owned);
            }
        } else {
            self.fallback_endpoint = origin(url).map(str::to_owned);
        }
        self
    }

    /// Fills in the region that an ARN names.
    #[must_use]
    pub fn with_arn(mut self, arn: &str) -> Self {
        if self.region.is_none() {
            self.region = region_of_arn(arn);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::testing::{MapSecrets, settings, text};

    #[test]
    fn a_queue_url_tells_the_region_or_the_endpoint() {
        let of = |url: &str| Access::default().with_queue_url(url);
        assert_eq!(
            of("https://sqs.eu-west-1.amazonaws.com/111122223333/q.fifo").region.as_deref(),
            Some("eu-west-1")
        );
        assert_eq!(
            of("https://sqs.cn-north-1.amazonaws.com.cn/1/q").region.as_deref(),
            Some("cn-north-1")
        );
        assert_eq!(
            of("https://eu-west-1.queue.amazonaws.com/1/q").region.as_deref(),
            Some("eu-west-1")
        );
        let local = of("http://127.0.0.1:4566/000000000000/answers.fifo");
        assert_eq!(local.region, None);
        assert_eq!(local.fallback_endpoint.as_deref(), Some("http://127.0.0.1:4566"));
        let fake = of("https://sqs.eu-west-1.amazonaws.com.evil.example/1/q");
        assert_eq!(fake.region, None);
    }

    #[test]
    fn an_arn_tells_the_region_and_a_configured_one_wins() {
        let arn = "arn:aws:sns:eu-west-1:111122223333:waits";
        assert_eq!(region_of_arn(arn).as_deref(), Some("eu-west-1"));
        assert_eq!(region_of_arn("waits"), None);
        let set = Access { region: Some("us-east-1".to_owned()), ..Access::default() };
        assert_eq!(set.with_arn(arn).region.as_deref(), Some("us-east-1"));
    }

    #[test]
    fn wrong_values_are_refused_with_what_would_be_right() {
        let mut bad = settings(
            vec![
                ("region", text("Europe")),
                ("endpoint_url", text("http://user:secret@host")),
                ("role_arn", text("answerback")),
            ],
            MapSecrets::default(),
        );
        assert_eq!(Access::read(&mut bad), Access::default());
        let problems = bad.finish().unwrap_err();
        assert_eq!(problems.len(), 3);
        let all = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(!all.contains("secret"), "{all}");
        let mut good = settings(
            vec![
                ("region", text("eu-west-1")),
                ("endpoint_url", text("http://127.0.0.1:4566")),
                ("role_arn", text("arn:aws:iam::111122223333:role/x/answerback")),
            ],
            MapSecrets::default(),
        );
        assert!(Access::read(&mut good).role_arn.is_some());
        assert!(good.finish().is_ok());
    }

    #[test]
    fn a_session_is_named_within_what_sts_takes() {
        assert_eq!(session_name("fin ance/1"), "answerback-fin-ance-1");
        assert_eq!(session_name(&"ö".repeat(99)).len(), 64);
    }

    #[test]
    fn only_aws_hosts_are_aws_hosts() {
        assert!(is_aws_host("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com"));
        assert!(!is_aws_host("http://127.0.0.1:4566"));
        assert!(!is_aws_host("https://amazonaws.com.example"));
    }
}
