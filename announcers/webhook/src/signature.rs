//! The two signatures of a webhook: agent-wait's own over the body, and Standard Webhooks' over
//! id, time and body.

use answerback_contract::{ExposeSecret, SecretString};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What marks a Standard Webhooks secret whose rest is base64.
const ENCODED_PREFIX: &str = "whsec_";

/// Secrets are copied by hand from other systems, some of which leave the padding out.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One secret, as the states of two keyed hashes, so that a message costs no key schedule.
///
/// Has no `Debug` on purpose.
#[derive(Clone)]
pub(crate) struct SigningKey {
    /// Keyed with the literal bytes of the secret (`X-Agent-Wait-Signature`).
    literal: Hmac<Sha256>,
    /// Keyed with the decoded secret (`webhook-signature`).
    standard: Hmac<Sha256>,
}

/// A secret that starts with `whsec_` but does not go on as base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret starts with whsec_, so the rest must be base64; give it as it was issued, or a secret without that prefix"
)]
pub struct BadSecret;

impl SigningKey {
    /// Takes a secret; one that starts with `whsec_` is decoded for the standard signature.
    pub(crate) fn new(secret: &SecretString) -> Result<Self, BadSecret> {
        let text = secret.expose_secret();
        let literal = keyed(text.as_bytes())?;
        let standard = match text.strip_prefix(ENCODED_PREFIX) {
            Some(encoded) => {
                let decoded = LENIENT.decode(encoded).map_err(|_| BadSecret)?;
                if decoded.is_empty() {
                    return Err(BadSecret);
                }
                keyed(&decoded)?
            }
            None => literal.clone(),
        };
        Ok(Self { literal, standard })
    }

    /// The value of `X-Agent-Wait-Signature`.
    pub(crate) fn agent_wait(&self, body: &[u8]) -> String {
        let mac = self.literal.clone().chain_update(body).finalize().into_bytes();
        format!("sha256={}", hex::encode(mac))
    }

    /// Appends one signature of `webhook-signature`: `v1,` and base64 over `id.timestamp.body`.
    pub(crate) fn append_standard(&self, out: &mut String, id: &str, timestamp: &str, body: &[u8]) {
        let mac = self
            .standard
            .clone()
            .chain_update(id)
            .chain_update(".")
            .chain_update(timestamp)
            .chain_update(".")
            .chain_update(body)
            .finalize()
            .into_bytes();
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str("v1,");
        STANDARD.encode_string(mac, out);
    }
}

fn keyed(key: &[u8]) -> Result<Hmac<Sha256>, BadSecret> {
    Hmac::new_from_slice(key).map_err(|_| BadSecret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_wait_signature_is_lower_hex_over_the_body_under_the_literal_secret() {
        let key = SigningKey::new(&"key".into()).unwrap();
        // RFC-known vector of HMAC-SHA256("key", the pangram).
        assert_eq!(
            key.agent_wait(b"The quick brown fox jumps over the lazy dog"),
            "sha256=f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8"
        );
        let encoded = SigningKey::new(&"whsec_a2V5".into()).unwrap();
        assert_ne!(encoded.agent_wait(b"x"), key.agent_wait(b"x"));
    }

    #[test]
    fn the_standard_signature_matches_the_specification_s_example() {
        // The example of the Standard Webhooks specification and its reference libraries.
        let key = SigningKey::new(&"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()).unwrap();
        let mut out = String::new();
        key.append_standard(
            &mut out,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(out, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn both_live_secrets_sign_separated_by_a_space() {
        let mut out = String::new();
        for secret in ["one", "two"] {
            SigningKey::new(&secret.into()).unwrap().append_standard(&mut out, "i", "1", b"{}");
        }
        let parts: Vec<_> = out.split(' ').collect();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|p| p.starts_with("v1,") && p.len() == 47));
        assert_ne!(parts[0], parts[1]);
    }

    #[test]
    fn an_encoded_secret_must_decode() {
        assert!(SigningKey::new(&"whsec_***".into()).is_err());
        assert!(SigningKey::new(&"whsec_".into()).is_err());
        assert!(SigningKey::new(&"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAA==".into()).is_ok());
        assert!(SigningKey::new(&"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwAA".into()).is_ok());
    }
}
