//! The HTTP API (contract, section 3).
//!
//! A request passes through one function, [`Front::handle`]: it gets its id, is turned away when it
//! may not come in at all ([`guard`]), and is routed by axum over the table in [`routes`]. Behind
//! every route stands the same sequence ([`front`]): who calls and may they ([`auth`]), is the
//! query understood ([`query`]), is the body small enough and JSON ([`body`]), was this very request
//! answered before ([`idempotency`]). Only then a handler runs ([`waits`], [`outbox`], [`health`]),
//! which knows nothing of HTTP: it takes a [`front::Call`] and gives a [`reply::Reply`] or a
//! [`problem::Problem`]. Only the stream of [`events`] makes its response itself.
//!
//! Handlers read from the store and write through [`Intake`] only, so that whatever comes in by
//! HTTP has the same effects as by any other source.

mod auth;
mod body;
mod events;
mod front;
mod guard;
mod health;
mod idempotency;
mod openapi;
mod outbox;
mod problem;
mod query;
mod reply;
mod routes;
mod server;
#[cfg(test)]
mod tests;
mod view;
mod waits;

pub use auth::Auth;
pub use front::Front;
pub use server::{Limits, Server, ServerError, TlsFiles};

use crate::clock::Clock;
use crate::intake::Intake;
use crate::store::Store;
use answerback_core::Rules;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What the API stands on.
pub struct ApiState {
    /// Where waits are read from.
    pub store: Arc<dyn Store>,
    /// Where messages go in.
    pub intake: Intake,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Who may do what.
    pub auth: Auth,
    /// Which announcers and routes there are.
    pub rules: Arc<Rules>,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// Cancelled when the daemon stops: then nothing new is taken, and long polls are let go.
    pub drain: CancellationToken,
}
