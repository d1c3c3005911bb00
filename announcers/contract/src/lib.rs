//! What an announcer must be, and the plain types it is given.
//!
//! An announcer crate depends on this crate and on its own SDK, never on the daemon. The daemon
//! depends on this crate and, in one file, on the announcers. The split of work is:
//!
//! * a [`Kind`] knows its settings: a pure [`Kind::validate`] turns them into a [`Target`];
//! * a [`Target`] is connected, asynchronously, into an [`Announcer`];
//! * an [`Announcer`] sends a batch and says of each message what came of it ([`Outcome`]).
//!   It never retries by itself: the daemon schedules.
//!
//! The same senders carry answers to hosts ([`Purpose::Answer`]): sending is sending.
//!
//! What comes in has the same shape the other way round: [`SourceKind`], [`Origin`], [`Source`].

mod announcer;
pub mod duration;
mod event;
mod ids;
pub mod json;
mod message;
pub mod settings;
mod source;
mod time;

pub use announcer::{
    Announcer, Attempt, ConnectError, Connecting, Field, Kind, Limits, Outcome, Purpose, Rejection,
    Target,
};
pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use event::{Event, Via, WaitState};
pub use ids::{
    BadId, DedupeKey, DedupeRest, EventId, Generation, MAX_ID_BYTES, QuestionId, TenantId, ThreadId,
};
pub use message::Message;
pub use secrecy::{ExposeSecret, SecretString};
pub use source::{Incoming, Inlet, Origin, Source, SourceHealth, SourceKind, Taken};
pub use time::{BadTime, Time};
