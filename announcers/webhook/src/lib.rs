//! Posts waits to webhooks, and answers to hosts that listen on HTTP.
//!
//! `config` reads settings, `request` and `signature` make the headers, `response` reads what came
//! back, all without I/O; `guard` says which addresses may be reached and `resolver` holds every
//! connection to it; `client` does the sending.
//!
//! Guarantees, by section 4 of the contract: a 2xx is delivered; each attempt is signed afresh; no
//! redirect is followed; no attempt takes longer than its timeout or reads more than 64 KiB of a
//! response; no proxy of the environment is used; a private address is reached only when
//! `allow_private` names it.

mod client;
mod config;
mod guard;
mod request;
mod resolver;
mod response;
mod signature;
#[cfg(test)]
mod testing;
mod tls;

pub use client::ReplySender;
pub use config::{BadTarget, HttpTarget};
pub use guard::{AddressGuard, AddressRefused, BadBlock};
pub use signature::BadSecret;
pub use tls::install_crypto_provider;

use answerback_contract::settings::{Problem, Settings};
use answerback_contract::{Field, Kind, Purpose, Target};
use std::sync::Arc;

/// `type = "webhook"` in `[announcers.NAME]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WebhookKind;

/// `type = "http"` in `[[routes]]`: the same sender, for answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpKind;

impl Kind for WebhookKind {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn fields(&self) -> &'static [Field] {
        config::FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        config::validate(purpose, settings).map(|target| Arc::new(target) as Arc<dyn Target>)
    }
}

impl Kind for HttpKind {
    fn name(&self) -> &'static str {
        "http"
    }

    fn fields(&self) -> &'static [Field] {
        config::FIELDS
    }

    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        WebhookKind.validate(purpose, settings)
    }
}
