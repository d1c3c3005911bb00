//! Who may do what: keys with scopes, and agent-wait's signatures.
//!
//! Without keys everybody may do everything, for then only loopback callers come this far
//! ([`super::guard`]). Are there webhook secrets but no keys, a question has to be signed all the
//! same: whoever configures a secret wants it checked.

use super::problem::Problem;
use crate::config::{self, Require, Scope, Scopes};
use answerback_contract::{ExposeSecret, TenantId};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Carries agent-wait's signature of the raw body (wire facts, section 2).
pub(crate) const X_SIGNATURE: HeaderName = HeaderName::from_static("x-agent-wait-signature");

/// Who sent a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
    /// The key's name, where there is one.
    pub(crate) key: Option<Arc<str>>,
}

#[derive(Debug)]
struct Key {
    name: Arc<str>,
    digest: [u8; 32],
    scopes: Scopes,
    tenant: TenantId,
}

#[derive(Debug)]
struct Signer {
    mac: Hmac<Sha256>,
    tenant: TenantId,
}

/// Knows the keys by their SHA-256 only, so that looking one up takes the same time for every
/// wrong secret.
#[derive(Debug)]
pub struct Auth {
    keys: HashMap<[u8; 32], Key>,
    signers: Vec<Signer>,
    require: Require,
}

impl Auth {
    /// Takes `[auth]` in.
    #[must_use]
    pub fn new(settings: &config::Auth) -> Self {
        let keys = settings.keys.iter().map(|key| {
            let digest = digest(key.secret.expose_secret().as_bytes());
            let known = Key {
                name: Arc::clone(&key.name),
                digest,
                scopes: key.scopes.clone(),
                tenant: key.tenant.clone(),
            };
            (digest, known)
        });
        let signers = settings.webhook_secrets.iter().filter_map(|secret| {
            // An HMAC takes a key of any length.
            let mac = Hmac::new_from_slice(secret.secret.expose_secret().as_bytes()).ok()?;
            Some(Signer { mac, tenant: secret.tenant.clone() })
        });
        Self { keys: keys.collect(), signers: signers.collect(), require: settings.require }
    }

    /// Whether there are no keys: then only loopback callers are served, and they may do anything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
    }

    /// Who calls, when any of `scopes` is enough. The first is the one that is asked for.
    pub(crate) fn by_key(&self, headers: &HeaderMap, scopes: &[Scope]) -> Result<Caller, Problem> {
        if self.is_open() {
            return Ok(Caller { tenant: TenantId::default_tenant(), key: None });
        }
        let key = self.key(headers)?;
        if !scopes.iter().any(|scope| key.scopes.allow(*scope)) {
            return Err(Problem::lacks_scope(scopes.first().map_or("admin", |s| s.name())));
        }
        Ok(Caller { tenant: key.tenant.clone(), key: Some(Arc::clone(&key.name)) })
    }

    /// Who asks a question, as far as the head of the request tells.
    pub(crate) fn asker(&self, headers: &HeaderMap) -> Result<Asker, Problem> {
        let by_key = || self.by_key(headers, &[Scope::Publish]);
        let signed = || {
            if self.signers.is_empty() {
                return Err(Problem::unauthenticated(
                    "send an API key as Authorization: Bearer; no webhook_secrets are configured that \
                     a signature could be checked by",
                ));
            }
            let mut values = headers.get_all(X_SIGNATURE).iter();
            match (values.next().and_then(read_signature), values.next()) {
                (Some(mac), None) => Ok(mac),
                _ => Err(Problem::unauthenticated(
                    "send an API key as Authorization: Bearer, or X-Agent-Wait-Signature: \
                     sha256=<hex HMAC-SHA256 of the body>",
                )),
            }
        };
        match self.require {
            Require::Both => Ok(Asker::Signed(signed()?, Some(by_key()?))),
            Require::Any if self.is_open() && self.signers.is_empty() => by_key().map(Asker::Known),
            // Secrets without keys: whoever asks has to sign.
            Require::Any if self.is_open() => signed().map(|mac| Asker::Signed(mac, None)),
            Require::Any if headers.contains_key(X_SIGNATURE) => match by_key() {
                Ok(caller) => Ok(Asker::Known(caller)),
                Err(_) => signed().map(|mac| Asker::Signed(mac, None)),
            },
            Require::Any => by_key().map(Asker::Known),
        }
    }

    /// Who signed a body.
    pub(crate) fn signer(&self, mac: &[u8; 32], body: &[u8]) -> Result<Caller, Problem> {
        for signer in &self.signers {
            let mut own = signer.mac.clone();
            own.update(body);
            if own.verify_slice(mac).is_ok() {
                return Ok(Caller { tenant: signer.tenant.clone(), key: None });
            }
        }
        Err(Problem::unauthenticated(
            "X-Agent-Wait-Signature was made with no secret of [auth] webhook_secrets, or of another body",
        ))
    }

    fn key(&self, headers: &HeaderMap) -> Result<&Key, Problem> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Problem::unauthenticated(
                "send one API key as Authorization: Bearer <key>",
            ));
        };
        let Some(token) = bearer(value) else {
            return Err(Problem::unauthenticated(
                "send the API key as Authorization: Bearer <key>",
            ));
        };
        let sent = digest(token);
        self.keys
            .get(&sent)
            .filter(|key| bool::from(key.digest.ct_eq(&sent)))
            .ok_or_else(|| Problem::unauthenticated("this API key is not known"))
    }
}

/// Who asks a question.
#[derive(Debug)]
pub(crate) enum Asker {
    /// Known by a key, or everybody may.
    Known(Caller),
    /// Whoever made this signature, once the body is there; and by this key too.
    Signed([u8; 32], Option<Caller>),
}

impl Asker {
    /// The caller, when a good signature came, and perhaps a key that has to fit it.
    pub(crate) fn both(signer: Caller, by_key: Option<Caller>) -> Result<Caller, Problem> {
        match by_key {
            None => Ok(signer),
            Some(caller) if caller.tenant == signer.tenant => Ok(caller),
            Some(_) => Err(Problem::unauthenticated(
                "the API key and the signature's secret belong to different tenants",
            )),
        }
    }
}

fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// The token of `Bearer <token>`; the scheme in any letter case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

fn read_signature(value: &HeaderValue) -> Option<[u8; 32]> {
    let mut mac = [0; 32];
    let digits = value.to_str().ok()?.trim().strip_prefix("sha256=")?;
    hex::decode_to_slice(digits, &mut mac).ok()?;
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, secret: &str, scopes: &[Scope], tenant: &str) -> config::ApiKey {
        config::ApiKey {
            name: name.into(),
            secret: secret.into(),
            scopes: Scopes::of(scopes),
            tenant: TenantId::new(tenant).unwrap(),
        }
    }

    fn hook(secret: &str, tenant: &str) -> config::WebhookSecret {
        config::WebhookSecret {
            name: "hook".into(),
            secret: secret.into(),
            tenant: TenantId::new(tenant).unwrap(),
        }
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (n.clone(), HeaderValue::from_str(v).unwrap())).collect()
    }

    fn sign(secret: &str, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(body);
        format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
    }

    fn auth(require: Require) -> Auth {
        Auth::new(&config::Auth {
            keys: vec![
                key("agents", "k-pub", &[Scope::Publish], "default"),
                key("ops", "k-adm", &[Scope::Admin], "default"),
                key("other", "k-two", &[Scope::Publish, Scope::Read], "two"),
            ],
            webhook_secrets: vec![hook("s1", "default"), hook("s2", "two")],
            require,
        })
    }

    /// The status of a refusal, or the tenant.
    fn ask(auth: &Auth, headers: &HeaderMap, body: &[u8]) -> Result<String, u16> {
        let caller = match auth.asker(headers) {
            Ok(Asker::Known(caller)) => Ok(caller),
            Ok(Asker::Signed(mac, by_key)) => {
                auth.signer(&mac, body).and_then(|signer| Asker::both(signer, by_key))
            }
            Err(problem) => Err(problem),
        };
        caller.map(|c| c.tenant.to_string()).map_err(|p| p.status.as_u16())
    }

    #[test]
    fn a_key_has_its_scopes_and_admin_has_all() {
        let auth = auth(Require::Any);
        let status = |secret: &str, scopes: &[Scope]| {
            auth.by_key(&headers(&[(header::AUTHORIZATION, secret)]), scopes)
                .map(|c| c.key.unwrap().to_string())
                .map_err(|p| (p.status.as_u16(), p.detail("scope").cloned()))
        };
        assert_eq!(status("Bearer k-pub", &[Scope::Publish]), Ok("agents".to_owned()));
        assert_eq!(
            status("bearer  k-pub", &[Scope::Read, Scope::Publish]),
            Ok("agents".to_owned())
        );
        assert_eq!(status("Bearer k-pub", &[Scope::Read]), Err((403, Some("read".into()))));
        assert_eq!(status("Bearer k-pub", &[Scope::Admin]), Err((403, Some("admin".into()))));
        for scope in Scope::ALL {
            assert_eq!(status("Bearer k-adm", &[scope]), Ok("ops".to_owned()));
        }
        for bad in ["Bearer k-no", "Bearer ", "Basic k-pub", "k-pub", "Bearer K-PUB"] {
            assert_eq!(status(bad, &[Scope::Publish]), Err((401, None)), "{bad}");
        }
        assert_eq!(auth.by_key(&HeaderMap::new(), &[Scope::Read]).unwrap_err().status, 401);
        let mut twice = headers(&[(header::AUTHORIZATION, "Bearer k-adm")]);
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer k-adm"));
        assert_eq!(auth.by_key(&twice, &[Scope::Read]).unwrap_err().status, 401);
    }

    #[test]
    fn a_question_comes_by_key_or_by_signature() {
        let auth = auth(Require::Any);
        let body = br#"{"a": 1.10}"#;
        let by = |pairs: &[(HeaderName, &str)]| ask(&auth, &headers(pairs), body);
        assert_eq!(by(&[(X_SIGNATURE, &sign("s1", body))]), Ok("default".to_owned()));
        assert_eq!(by(&[(X_SIGNATURE, &sign("s2", body))]), Ok("two".to_owned()));
        assert_eq!(by(&[(X_SIGNATURE, &sign("s3", body))]), Err(401));
        assert_eq!(by(&[(X_SIGNATURE, &sign("s1", br#"{"a": 1.1}"#))]), Err(401));
        for bad in ["sha256=", "sha256=zz", "md5=00", ""] {
            assert_eq!(by(&[(X_SIGNATURE, bad)]), Err(401), "{bad}");
        }
        assert_eq!(by(&[(header::AUTHORIZATION, "Bearer k-two")]), Ok("two".to_owned()));
        assert_eq!(by(&[]), Err(401));
        // Whichever of the two is good is enough.
        assert_eq!(
            by(&[(header::AUTHORIZATION, "Bearer k-pub"), (X_SIGNATURE, "sha256=00")]),
            Ok("default".to_owned())
        );
        assert_eq!(
            by(&[(header::AUTHORIZATION, "Bearer nobody"), (X_SIGNATURE, &sign("s2", body))]),
            Ok("two".to_owned())
        );
    }

    #[test]
    fn both_means_both_and_of_one_tenant() {
        let auth = auth(Require::Both);
        let body = b"{}";
        let by = |pairs: &[(HeaderName, &str)]| ask(&auth, &headers(pairs), body);
        let (good, other) = (sign("s1", body), sign("s2", body));
        assert_eq!(
            by(&[(header::AUTHORIZATION, "Bearer k-pub"), (X_SIGNATURE, &good)]),
            Ok("default".to_owned())
        );
        assert_eq!(by(&[(header::AUTHORIZATION, "Bearer k-pub"), (X_SIGNATURE, &other)]), Err(401));
        assert_eq!(by(&[(header::AUTHORIZATION, "Bearer k-pub")]), Err(401));
        assert_eq!(by(&[(X_SIGNATURE, &good)]), Err(401));
    }

    #[test]
    fn secrets_without_keys_ask_for_a_signature_on_questions_only() {
        let auth = Auth::new(&config::Auth {
            webhook_secrets: vec![hook("s1", "default")],
            ..config::Auth::default()
        });
        assert!(auth.is_open());
        assert_eq!(ask(&auth, &HeaderMap::new(), b"{}"), Err(401));
        let signed = headers(&[(X_SIGNATURE, &sign("s1", b"{}"))]);
        assert_eq!(ask(&auth, &signed, b"{}"), Ok("default".to_owned()));
        assert!(auth.by_key(&HeaderMap::new(), &[Scope::Admin]).is_ok());
    }

    #[test]
    fn no_secret_shows_in_debug() {
        let text = format!("{:?}", auth(Require::Any));
        assert!(!text.contains("k-pub") && !text.contains("s1\""));
    }
}
