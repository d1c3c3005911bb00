//! The pure heart of answerback: what a message means and what follows from it.
//!
//! No I/O, no clock, no randomness and no runtime: whoever calls hands in the instant, the fresh
//! ids and the random numbers. A store reads what is known of a wait, asks one of the `decide`
//! functions, and carries out the [`Op`]s it is told, all in one transaction. So every store has
//! the same rules, and the rules can be tested without any.

pub mod answer;
pub mod breaker;
mod closing;
pub mod envelope;
mod field;
mod hidden;
pub mod inbound;
pub mod matching;
pub mod message;
mod model;
#[cfg(test)]
mod properties;
pub mod publish;
pub mod reply_to;
pub mod retry;
mod rules;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use answer::{Answer, AnswerOutcome, AnswerRequest};
pub use closing::{CancelOutcome, cancel, deadline};
pub use envelope::Envelope;
pub use field::Refusal;
pub use inbound::{Inbound, Start};
pub use model::{
    Destination, GivenAnswer, Leased, Name, NewWait, Op, OrderKey, OutboxId, OutboxState, Send,
    Wait, WaitId, WaitRef,
};
pub use publish::{Publish, PublishOutcome};
pub use rules::{AnnouncerRule, Republished, RouteRule, Rules};

/// The most bytes an envelope, an answer or a start message may have (contract, section 2).
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;
