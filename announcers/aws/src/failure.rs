//! What an error of the SDK means for the message: send again, or never.
//!
//! The texts name the error's code, the HTTP status and the cure, never the service's own message:
//! that can quote content.

use answerback_contract::{ConnectError, Outcome, Rejection};
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// What kind of trouble an error is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// No answer in time; it may have arrived.
    Timeout,
    /// The service cannot be reached.
    Unreachable,
    /// The SDK finds no credentials, or may not assume the role.
    NoCredentials,
    /// The credentials or their signature are refused: expired, revoked, wrong, clock off.
    Credentials,
    /// The credentials are fine, the permission is missing.
    Denied,
    /// The encryption key of the destination cannot be used.
    Key,
    /// Too many requests.
    Throttled,
    /// The queue, topic or table is not there (or not yet).
    Missing,
    /// Trouble on the service's side.
    Service,
    /// The message is over the size limit.
    TooLong,
    /// The service will never take this content.
    Content,
    /// The request is wrong in a way that the message is not known to cause.
    Request,
}

/// An error of a call, without content and secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What kind of trouble.
    pub class: Class,
    /// The service's code for it, or what the network said.
    pub code: String,
    /// The HTTP status, when there was a response.
    pub status: Option<u16>,
    /// What the service asked for in `Retry-After`.
    pub after: Option<Duration>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.class {
            Class::Timeout => "no answer within the attempt's time",
            Class::Unreachable => {
                "AWS cannot be reached; check the network, region and endpoint_url"
            }
            Class::NoCredentials => {
                "no usable AWS credentials; give the daemon's process some (environment, profile, \
                 container or instance role) and let it assume role_arn"
            }
            Class::Credentials => {
                "AWS refuses the credentials; renew them, or set the host's clock right"
            }
            Class::Denied => "AWS denies access; grant the permission to the daemon's identity",
            Class::Key => "the encryption key cannot be used; grant its use, or enable the key",
            Class::Throttled => "AWS throttles",
            Class::Missing => "the destination does not exist; create it, or correct its name",
            Class::Service => "AWS has an error on its side",
            Class::TooLong => "the message is over the size that the destination takes",
            Class::Content => "AWS refuses the message's content",
            Class::Request => "AWS refuses the request",
        };
        f.write_str(what)?;
        match (self.code.as_str(), self.status) {
            ("", None) => Ok(()),
            ("", Some(status)) => write!(f, " (HTTP {status})"),
            (code, None) => write!(f, " ({code})"),
            (code, Some(status)) => write!(f, " ({code}, HTTP {status})"),
        }
    }
}

impl Failure {
    /// The outcome for a message that was alone in its call.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.class {
            Class::TooLong => {
                Outcome::Rejected { rejection: Rejection::TooLarge, reason: self.to_string() }
            }
            Class::Content => Outcome::refused(self.to_string()),
            _ => Outcome::Retry { reason: self.to_string(), after: self.after },
        }
    }

    /// Whether the message itself is to blame, so that others of the same call may pass alone.
    #[must_use]
    pub fn blames_the_message(&self) -> bool {
        matches!(self.class, Class::TooLong | Class::Content)
    }

    /// As the result of a probe. `action` is the permission that probing needs, such as
    /// `sqs:GetQueueAttributes`.
    #[must_use]
    pub fn probe_error(&self, action: &str) -> ConnectError {
        let what = match self.class {
            Class::Denied => format!(
                "{action} is denied ({}); only this check needs it, sending may work: grant \
                 {action}, or leave out the check",
                self.code
            ),
            _ => format!("{action}: {self}"),
        };
        ConnectError { what, source: None }
    }
}

/// What an error of a call means.
#[must_use]
pub fn of<E>(error: &SdkError<E, HttpResponse>) -> Failure
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let plain = |class, code: String| Failure { class, code, status: None, after: None };
    if let Some(trouble) = find::<CredentialsError>(error) {
        return plain(Class::NoCredentials, credentials_code(trouble));
    }
    match error {
        SdkError::TimeoutError(_) => plain(Class::Timeout, String::new()),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => {
            plain(Class::Timeout, "while connecting".to_owned())
        }
        SdkError::DispatchFailure(_) => plain(
            Class::Unreachable,
            find::<std::io::Error>(error).map_or_else(String::new, |io| io.kind().to_string()),
        ),
        SdkError::ConstructionFailure(_) => plain(Class::Request, "could not be built".to_owned()),
        SdkError::ResponseError(response) => {
            let status = response.raw().status().as_u16();
            Failure {
                class: of_status(status).unwrap_or(Class::Service),
                code: "unreadable response".to_owned(),
                status: Some(status),
                after: retry_after(response.raw()),
            }
        }
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            let code = service.err().code().unwrap_or_default();
            let message = service.err().message().unwrap_or_default();
            Failure {
                class: of_code(code, message).or(of_status(status)).unwrap_or(Class::Request),
                code: bare(code).to_owned(),
                status: Some(status),
                after: retry_after(service.raw()),
            }
        }
        _ => plain(Class::Request, String::new()),
    }
}

/// What a failed entry of a batch means. A fault of the sender that is nothing else is the
/// message's own.
#[must_use]
pub fn of_entry(code: &str, message: &str, sender_fault: bool) -> Failure {
    let unknown = if sender_fault { Class::Content } else { Class::Service };
    let class = match of_code(code, message) {
        Some(Class::Request) | None => unknown,
        // The service says that it is not the sender's fault.
        Some(Class::Content | Class::TooLong) if !sender_fault => Class::Service,
        Some(class) => class,
    };
    Failure { class, code: bare(code).to_owned(), status: None, after: None }
}

/// What a code means; `message` tells apart the codes that stand for many things.
///
/// Codes of SQS, SNS, DynamoDB, KMS and those common to all services, in the spellings of the JSON
/// and the query protocols.
#[must_use]
pub fn of_code(code: &str, message: &str) -> Option<Class> {
    let bare = bare(code);
    let name = bare.strip_suffix("Exception").unwrap_or(bare);
    Some(match name {
        "ExpiredToken"
        | "TokenRefreshRequired"
        | "InvalidClientTokenId"
        | "InvalidAccessKeyId"
        | "UnrecognizedClient"
        | "InvalidSignature"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenCode"
        | "RequestExpired"
        | "RequestTimeTooSkewed"
        | "InvalidToken"
        | "NotAuthorized"
        | "InvalidSecurity"
        | "AuthFailure" => Class::Credentials,
        "AccessDenied"
        | "AuthorizationError"
        | "UnauthorizedOperation"
        | "Unauthorized"
        | "OptInRequired"
        | "Forbidden" => Class::Denied,
        kms if kms.len() > 3 && kms[..3].eq_ignore_ascii_case("kms") => match kms {
            throttled if throttled.contains("hrottl") => Class::Throttled,
            _ => Class::Key,
        },
        "Throttling"
        | "Throttled"
        | "ThrottledRequest"
        | "RequestThrottled"
        | "RequestThrottledError"
        | "RequestLimitExceeded"
        | "ProvisionedThroughputExceeded"
        | "TooManyRequests"
        | "LimitExceeded"
        | "BandwidthLimitExceeded"
        | "SlowDown"
        | "PriorRequestNotComplete"
        | "OverLimit"
        | "EC2Throttled" => Class::Throttled,
        "NonExistentQueue"
        | "QueueDoesNotExist"
        | "QueueDeletedRecently"
        | "ResourceNotFound"
        | "NotFound"
        | "InvalidAddress"
        | "TableNotFound"
        | "ResourceInUse"
        | "EndpointDisabled" => Class::Missing,
        "InternalError"
        | "InternalFailure"
        | "InternalServerError"
        | "InternalServer"
        | "ServiceUnavailable"
        | "RequestTimeout"
        | "RequestTimeoutError"
        | "TransactionConflict"
        | "TransactionInProgress"
        | "ReplicatedWriteConflict" => Class::Service,
        "MessageTooLong" | "BatchRequestTooLong" => Class::TooLong,
        "InvalidMessageContents" => Class::Content,
        "InvalidParameterValue"
        | "InvalidParameter"
        | "Validation"
        | "ValidationError"
        | "ParameterValueInvalid" => of_message(message),
        "MissingParameter" | "InvalidAttributeValue" | "InvalidAttributeName" => Class::Request,
        "InvalidEndpoint" | "InvalidAction" | "UnsupportedOperation" | "UnknownOperation" => {
            Class::Request
        }
        _ => return None,
    })
}

/// Validation errors have one code for what the message and what the configuration causes.
fn of_message(message: &str) -> Class {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if says(&["too long", "shorter than", "exceeded the maximum allowed size", "size has exceeded"])
    {
        return Class::TooLong;
    }
    if says(&["TopicArn", "QueueUrl", "QueueName", "TableName", "tableName"]) {
        return Class::Missing;
    }
    // A table with other keys than `pk` and `sk`.
    if says(&["does not match the schema", "Missing the key", "Type mismatch for key"]) {
        return Class::Request;
    }
    // Without a word of what is wrong, it is not known to be the message.
    if message.is_empty() { Class::Request } else { Class::Content }
}

fn of_status(status: u16) -> Option<Class> {
    match status {
        408 => Some(Class::Timeout),
        413 => Some(Class::TooLong),
        429 => Some(Class::Throttled),
        401 => Some(Class::Credentials),
        403 => Some(Class::Denied),
        500.. => Some(Class::Service),
        _ => None,
    }
}

/// A code without what some protocols put around it: `AWS.SimpleQueueService.NonExistentQueue`,
/// `com.amazonaws.dynamodb.v20120810#ThrottlingException`, `QueueDoesNotExist:http://…`.
fn bare(code: &str) -> &str {
    let code = code.rsplit_once('#').map_or(code, |(_, last)| last);
    let code = code.split_once(':').map_or(code, |(first, _)| first);
    match code.rsplit_once('.') {
        Some(("KMS", "ThrottlingException" | "AccessDeniedException")) => code,
        Some((_, last)) => last,
        None => code,
    }
}

/// Seconds of `Retry-After`; its date form is not used by AWS.
fn retry_after(response: &HttpResponse) -> Option<Duration> {
    response.headers().get("retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

fn credentials_code(error: &CredentialsError) -> String {
    let text = chain(error);
    // The role's own refusals; the whole text would name identities.
    let known = [
        "AccessDenied",
        "ExpiredToken",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "InvalidIdentityToken",
        "RegionDisabledException",
    ];
    let kind = match error {
        CredentialsError::CredentialsNotLoaded(_) => "none found",
        CredentialsError::ProviderTimedOut(_) => "their provider did not answer in time",
        CredentialsError::InvalidConfiguration(_) => "their configuration is not valid",
        _ => "their provider failed",
    };
    match known.into_iter().find(|code| text.contains(code)) {
        Some(code) => format!("{kind}: {code}"),
        None => kind.to_owned(),
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(" {cause} {cause:?}"));
        next = cause.source();
    }
    text
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref::<T>() {
            return Some(found);
        }
        next = cause.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(code: &str, message: &str, sender_fault: bool) -> Class {
        of_entry(code, message, sender_fault).class
    }

    #[test]
    fn what_an_operator_can_mend_is_a_retry_whoever_is_at_fault() {
        for code in [
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "AccessDenied",
            "AccessDeniedException",
            "AuthorizationError",
            "Throttling",
            "ThrottlingException",
            "RequestThrottled",
            "KMS.ThrottlingException",
            "KmsThrottled",
            "KMSThrottlingException",
            "KmsAccessDenied",
            "KMSDisabledException",
            "ProvisionedThroughputExceededException",
            "AWS.SimpleQueueService.NonExistentQueue",
            "com.amazonaws.sqs#QueueDoesNotExist",
            "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException",
            "NotFound",
            "OverLimit",
            "InternalFailure",
            "ServiceUnavailable",
            "RequestExpired",
        ] {
            let failure = of_entry(code, "x", true);
            assert!(matches!(failure.outcome(), Outcome::Retry { .. }), "{code}: {failure:?}");
        }
    }

    #[test]
    fn a_fault_of_the_service_is_a_retry_and_one_of_the_sender_a_refusal() {
        assert_eq!(entry("Weird", "", false), Class::Service);
        assert_eq!(entry("Weird", "", true), Class::Content);
        assert_eq!(entry("InvalidMessageContents", "", true), Class::Content);
        assert_eq!(entry("InvalidMessageContents", "", false), Class::Service);
        assert_eq!(entry("MessageTooLong", "", true), Class::TooLong);
        assert_eq!(
            of_entry(
                "InvalidParameterValue",
                "Reason: Message must be shorter than 9 bytes.",
                true
            )
            .outcome(),
            Outcome::Rejected {
                rejection: Rejection::TooLarge,
                reason: "the message is over the size that the destination takes \
                         (InvalidParameterValue)"
                    .to_owned(),
            }
        );
    }

    #[test]
    fn a_validation_error_of_the_destination_is_not_the_messages() {
        let class = |message| of_code("ValidationException", message);
        assert_eq!(class("Item size has exceeded the maximum allowed size"), Some(Class::TooLong));
        assert_eq!(
            class("The provided key element does not match the schema"),
            Some(Class::Request)
        );
        assert_eq!(class("Missing the key id in the item"), Some(Class::Request));
        assert_eq!(class("Nesting Levels have exceeded supported limits"), Some(Class::Content));
        let sns = |message| of_code("InvalidParameter", message);
        assert_eq!(sns("Invalid parameter: TopicArn"), Some(Class::Missing));
        assert_eq!(sns("Invalid parameter: Message too long"), Some(Class::TooLong));
        assert_eq!(of_code("Unheard", ""), None);
    }

    #[test]
    fn the_text_has_the_cure_and_nothing_of_the_services_message() {
        let failure = of_entry("InvalidMessageContents", "thread secret-thread is bad", true);
        assert_eq!(
            failure.to_string(),
            "AWS refuses the message's content (InvalidMessageContents)"
        );
        let denied = Failure {
            class: Class::Denied,
            code: "AccessDenied".to_owned(),
            status: Some(403),
            after: None,
        };
        assert!(denied.to_string().contains("grant"));
        let probe = denied.probe_error("sqs:GetQueueAttributes").what;
        assert!(probe.contains("only this check needs it"), "{probe}");
    }

    mod sdk_errors {
        use super::super::*;
        use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
        use aws_smithy_runtime_api::client::result::ConnectorError;
        use aws_smithy_runtime_api::http::StatusCode;
        use aws_smithy_types::body::SdkBody;
        use aws_smithy_types::error::ErrorMetadata;

        #[derive(Debug)]
        struct Answer(ErrorMetadata);

        impl fmt::Display for Answer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("answer")
            }
        }

        impl Error for Answer {}

        impl ProvideErrorMetadata for Answer {
            fn meta(&self) -> &ErrorMetadata {
                &self.0
            }
        }

        fn response(status: u16) -> HttpResponse {
            let mut response =
                HttpResponse::new(StatusCode::try_from(status).unwrap(), SdkBody::empty());
            response.headers_mut().insert("retry-after", "7");
            response
        }

        fn service(status: u16, code: &str) -> Failure {
            let meta = ErrorMetadata::builder().code(code).message("the message").build();
            of(&SdkError::service_error(Answer(meta), response(status)))
        }

        #[test]
        fn codes_go_before_the_status() {
            assert_eq!(service(400, "ThrottlingException").class, Class::Throttled);
            assert_eq!(service(400, "ExpiredTokenException").class, Class::Credentials);
            assert_eq!(service(403, "InvalidMessageContents").class, Class::Content);
            assert_eq!(service(503, "Weird").class, Class::Service);
            assert_eq!(service(503, "").after, Some(Duration::from_secs(7)));
            assert_eq!(service(403, "Weird").class, Class::Denied);
        }

        #[test]
        fn an_unknown_refusal_of_a_whole_call_is_no_dead_letter() {
            assert!(matches!(service(400, "Weird").outcome(), Outcome::Retry { .. }));
        }

        #[test]
        fn network_trouble_says_what_it_is() {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            let error: SdkError<Answer, HttpResponse> =
                SdkError::dispatch_failure(ConnectorError::io(refused.into()));
            let failure = of(&error);
            assert_eq!(failure.class, Class::Unreachable);
            assert_eq!(failure.code, "connection refused");
            let slow: SdkError<Answer, HttpResponse> = SdkError::timeout_error("slow");
            assert_eq!(of(&slow).class, Class::Timeout);
        }

        #[test]
        fn missing_credentials_are_a_retry_that_says_so() {
            let none = CredentialsError::not_loaded("no providers in chain");
            let error: SdkError<Answer, HttpResponse> =
                SdkError::dispatch_failure(ConnectorError::other(none.into(), None));
            let failure = of(&error);
            assert_eq!(failure.class, Class::NoCredentials);
            assert_eq!(failure.code, "none found");
            assert!(matches!(failure.outcome(), Outcome::Retry { .. }));
        }
    }
}
