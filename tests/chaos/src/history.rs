//! What was done and seen, with its real times: all that the oracle goes by.

use crate::clock::At;
use crate::schedule::Place;
use crate::text::Text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// From the moment before to the moment after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Span {
    /// Before anything could have happened.
    pub begin: At,
    /// After all that could have happened to the one who asked; what was asked may go on.
    pub end: At,
}

/// One question under one id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Deserialize, Serialize)]
pub struct WaitKey {
    /// Its conversation.
    pub thread: Text,
    /// Its id.
    pub question: Text,
    /// Which question under that id; from 1.
    pub generation: u32,
}

/// What a request came to.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub enum Reply<T> {
    /// Done, as acknowledged.
    Ok(T),
    /// Refused for a reason.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error's code.
        code: Text,
        /// `details.state`, where the wait is over.
        state: Option<Text>,
    },
    /// Nobody knows: no reply, or one that says to ask again.
    Unknown,
}

/// What a publish was acknowledged with.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Accepted {
    /// Which generation it is of.
    pub generation: u32,
    /// The key of its announcement.
    pub dedupe_key: Text,
    /// Nothing new was asked.
    pub duplicate: bool,
}

/// One attempt to ask.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Publish {
    /// When.
    pub span: Span,
    /// Of which replica.
    pub replica: usize,
    /// The conversation.
    pub thread: Text,
    /// The question's id.
    pub question: Text,
    /// The publish's own id: attempts with the same are one publish.
    pub event_id: Text,
    /// Exactly what was sent.
    pub body: Text,
    /// Which question: equal numbers ask the same.
    pub variant: u32,
    /// Whether it carried an `Idempotency-Key`: then the first reply comes again.
    pub keyed: bool,
    /// Milliseconds since 1970.
    pub deadline: Option<i64>,
    /// The default's JSON text.
    pub default: Option<Text>,
    /// What came of it.
    pub reply: Reply<Accepted>,
}

/// One attempt to answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// When.
    pub span: Span,
    /// Of which replica.
    pub replica: usize,
    /// The wait.
    pub wait: WaitKey,
    /// The answer's JSON text as sent.
    pub text: Text,
    /// The same value in one form: equal texts are equal values.
    pub value: Text,
    /// What came of it.
    pub reply: Reply<()>,
}

/// One attempt to withdraw the newest generation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cancel {
    /// When.
    pub span: Span,
    /// Of which replica.
    pub replica: usize,
    /// The wait.
    pub wait: WaitKey,
    /// What came of it.
    pub reply: Reply<()>,
}

/// What a host that pulls got.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub enum Pulled {
    /// The answer's JSON text.
    Answer(Text),
    /// None yet.
    NotYet,
}

/// One pull, or a look at the answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Pull {
    /// When.
    pub span: Span,
    /// Of which replica.
    pub replica: usize,
    /// The wait.
    pub wait: WaitKey,
    /// Whether this was `DELETE`: the host has it.
    pub delete: bool,
    /// What came of it.
    pub reply: Reply<Pulled>,
}

/// What a receiver did with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub enum Verdict {
    /// Taken and acknowledged.
    Took,
    /// Taken, but the acknowledgement was lost.
    LostAck,
    /// Refused with this status.
    Refused(u16),
    /// Never answered.
    Hung,
}

impl Verdict {
    /// Whether the receiver has the message.
    #[must_use]
    pub fn taken(self) -> bool {
        matches!(self, Self::Took | Self::LostAck)
    }
}

/// A message that came to a receiver.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Arrival {
    /// From its last byte to the reply, or to the loss of the connection.
    pub span: Span,
    /// Where.
    pub place: Place,
    /// Who sent it, where the message says.
    pub replica: Option<usize>,
    /// `wait.created` and so on.
    pub event: Text,
    /// Its dedupe key.
    pub dedupe_key: Text,
    /// The conversation.
    pub thread: Text,
    /// The question's id.
    pub question: Text,
    /// The generation; answers to hosts do not say it.
    pub generation: Option<u32>,
    /// The envelope's or event's own id.
    pub event_id: Text,
    /// Exactly what came; shared with what was published when equal.
    pub body: Text,
    /// The JSON text of the answer, of a delivery.
    pub answer: Option<Text>,
    /// `X-Answerback-Answered-Via` of a delivery.
    pub via: Option<Text>,
    /// What the receiver did.
    pub verdict: Verdict,
    /// Partition and offset in a stream.
    pub offset: Option<(i32, i64)>,
}

/// What a reader of the feed of events was told.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Fed {
    /// When.
    pub at: At,
    /// Which reader.
    pub reader: usize,
    /// By which replica.
    pub replica: usize,
    /// The event's place, by which the reader goes on.
    pub id: Text,
    /// `wait.created` and so on.
    pub event: Text,
    /// The wait.
    pub wait: WaitKey,
}

/// A fault that was injected.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Injected {
    /// From before its first effect to after its last.
    pub span: Span,
    /// Which.
    pub fault: crate::schedule::Fault,
}

/// A wait as it stands in the store at the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FinalWait {
    /// Which.
    pub wait: WaitKey,
    /// `open`, `completed`, `timed-out`, `cancelled`.
    pub state: Text,
    /// The key of its announcement.
    pub dedupe_key: Text,
    /// The publish that opened it.
    pub event_id: Text,
    /// How it was answered.
    pub via: Option<Text>,
}

/// An announcement or a delivery as it stands at the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FinalRow {
    /// The announcer's or route's name.
    pub name: Text,
    /// Whether it is an answer for a host.
    pub delivery: bool,
    /// Of which wait.
    pub wait: WaitKey,
    /// `wait.created` and so on.
    pub event: Text,
    /// `queued`, `delivered`, `dead`, `withdrawn`.
    pub state: Text,
    /// Why it is dead.
    pub reason: Text,
}

/// Everything.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct History {
    /// Milliseconds since 1970 when the run began.
    pub began_ms: i64,
    /// Why nobody knows what came of a request, and how often.
    #[serde(default)]
    pub unknown: BTreeMap<String, usize>,
    /// Asked.
    pub publishes: Vec<Publish>,
    /// Answered.
    pub answers: Vec<Answer>,
    /// Withdrawn.
    pub cancels: Vec<Cancel>,
    /// Come for.
    pub pulls: Vec<Pull>,
    /// Received.
    pub arrivals: Vec<Arrival>,
    /// Told by the feed.
    pub fed: Vec<Fed>,
    /// Whether the readers of the feed had come to its end.
    pub feed_ended: bool,
    /// What went wrong on purpose.
    pub faults: Vec<Injected>,
    /// What went wrong without purpose, such as a daemon that ended by itself.
    pub mishaps: Vec<(At, String)>,
    /// Waits at the end.
    pub waits: Vec<FinalWait>,
    /// Messages at the end.
    pub rows: Vec<FinalRow>,
    /// What was not settled within the quiet period's bound.
    pub unsettled: Option<String>,
}

/// A history that many write.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<History>>);

impl Recorder {
    /// For a run that began then.
    #[must_use]
    pub fn new(began_ms: i64) -> Self {
        Self(Arc::new(Mutex::new(History { began_ms, ..History::default() })))
    }

    /// Writes, or looks.
    pub fn with<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What happened without purpose.
    pub fn mishap(&self, at: At, what: impl Into<String>) {
        let what = what.into();
        self.with(|h| h.mishaps.push((at, what)));
    }
}
