//! What a store keeps, and what it is told to do.

use answerback_contract::{
    Bytes, DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, Via,
    WaitState,
};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// A wait's number in its store; newer waits have larger ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaitId(pub i64);

/// An announcement's or delivery's number in its store; newer ones have larger ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OutboxId(pub i64);

/// The name of an announcer or a route in the configuration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(Arc<str>);

impl Name {
    /// Takes a name that the configuration checked.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a message is to be sent: one lane of the dispatch each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Destination {
    /// An announcer of the configuration.
    Announcer(Name),
    /// A route of the configuration.
    Route(Name),
    /// The place that an envelope's `reply_to` names, cut to what isolates it from others: the
    /// origin of a URL, a queue, a function.
    ReplyTo(Name),
    /// Nowhere: the host comes for it.
    Pull,
}

impl Destination {
    /// Whether announcements go there; answers otherwise.
    #[must_use]
    pub fn is_announcer(&self) -> bool {
        matches!(self, Self::Announcer(_))
    }

    /// The kind and the name, as a store keeps them and [`Self::kept`] reads them.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Announcer(name) => ("announcer", name.as_str()),
            Self::Route(name) => ("route", name.as_str()),
            Self::ReplyTo(origin) => ("reply-to", origin.as_str()),
            Self::Pull => ("pull", ""),
        }
    }

    /// From what [`Self::parts`] gave.
    #[must_use]
    pub fn kept(kind: &str, name: &str) -> Option<Self> {
        match kind {
            "announcer" => Some(Self::Announcer(Name::new(name))),
            "route" => Some(Self::Route(Name::new(name))),
            "reply-to" => Some(Self::ReplyTo(Name::new(name))),
            "pull" => Some(Self::Pull),
            _ => None,
        }
    }

    /// What lists, logs and metrics call it: the configured name, `reply_to` or `pull`.
    #[must_use]
    pub fn label(&self) -> &str {
        match self {
            Self::Announcer(name) | Self::Route(name) => name.as_str(),
            Self::ReplyTo(_) => "reply_to",
            Self::Pull => "pull",
        }
    }
}

/// Messages that share it go out one after the other: the next only once the one before is
/// delivered, dead or withdrawn. A hash, so two threads may share one by chance, which only makes
/// them wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrderKey(pub i64);

impl OrderKey {
    /// Of a thread at one announcer.
    #[must_use]
    pub fn announcements(announcer: &Name, tenant: &TenantId, thread: &ThreadId) -> Self {
        Self::hash(&["announcer", announcer.as_str(), tenant.as_str(), thread.as_str()])
    }

    /// Of a thread's answers, whichever way they take: one is under way at a time (contract,
    /// section 6).
    #[must_use]
    pub fn answers(tenant: &TenantId, thread: &ThreadId) -> Self {
        Self::hash(&["answers", "", tenant.as_str(), thread.as_str()])
    }

    fn hash(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        let mut first = [0_u8; 8];
        first.copy_from_slice(&digest[..8]);
        Self(i64::from_be_bytes(first))
    }
}

/// Where an announcement or delivery stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutboxState {
    /// To be sent, now or later.
    Queued,
    /// The destination has it.
    Delivered,
    /// Given up, kept and listed; an operator can have it sent again.
    Dead,
    /// The wait was over first.
    Withdrawn,
}

impl OutboxState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Delivered, Self::Dead, Self::Withdrawn];

    /// The name as it stands in answers of the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The state of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// The answer that won.
#[derive(Clone, PartialEq, Eq)]
pub struct GivenAnswer {
    /// The JSON text of the answer, exact.
    pub value: Bytes,
    /// When it stops being usable: the earlier of the answer's own and `answer_ttl`'s.
    pub valid_until: Option<Time>,
    /// When it won.
    pub answered_at: Time,
    /// What the sender claims, and the key's name.
    pub answered_by: Option<String>,
    /// How it came.
    pub answered_via: Via,
}

impl GivenAnswer {
    /// Whether it may still be handed to a host.
    #[must_use]
    pub fn is_valid(&self, now: Time) -> bool {
        self.valid_until.is_none_or(|until| now < until)
    }
}

/// All that is kept of a wait.
#[derive(Clone, PartialEq, Eq)]
pub struct Wait {
    /// Its number.
    pub id: WaitId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The conversation.
    pub thread_id: ThreadId,
    /// The question.
    pub question_id: QuestionId,
    /// Which question under that id.
    pub generation: Generation,
    /// What its dedupe keys end with.
    pub rest: DedupeRest,
    /// The run it belongs to; for envelopes the thread.
    pub run_id: Arc<str>,
    /// Where it stands.
    pub state: WaitState,
    /// The envelope's text as it came first.
    pub envelope: Bytes,
    /// The newest duplicate's text: its `reply_to` and `reply_with` hold instead of the first's.
    pub taken_over: Option<Bytes>,
    /// The first publish's id, the envelope's own or minted.
    pub event_id: EventId,
    /// When it was taken in.
    pub created_at: Time,
    /// The deadline; `None` is never.
    pub expires_at: Option<Time>,
    /// When it ended.
    pub closed_at: Option<Time>,
    /// The answer that won, or the default.
    pub answer: Option<GivenAnswer>,
    /// How often the answer was sent again because the question was published again.
    pub resends: u32,
    /// Something an operator should know, such as a `reply_to` that is not allowed.
    pub note: Option<String>,
}

/// A wait about to be stored. Its number, and the `DedupeRest` that is still free, are the store's
/// to find.
#[derive(Clone, PartialEq, Eq)]
pub struct NewWait {
    /// Whose it is.
    pub tenant: TenantId,
    /// The conversation.
    pub thread_id: ThreadId,
    /// The question.
    pub question_id: QuestionId,
    /// Which question under that id.
    pub generation: Generation,
    /// The run it belongs to.
    pub run_id: Arc<str>,
    /// Where it starts: open, or timed out already.
    pub state: WaitState,
    /// The envelope's text.
    pub envelope: Bytes,
    /// The publish's id.
    pub event_id: EventId,
    /// Now.
    pub created_at: Time,
    /// The deadline.
    pub expires_at: Option<Time>,
    /// Set when it starts closed.
    pub closed_at: Option<Time>,
    /// Set when it starts closed with its default.
    pub answer: Option<GivenAnswer>,
    /// Something an operator should know.
    pub note: Option<String>,
}

impl NewWait {
    /// The wait as it is once it is stored under a number and a dedupe rest.
    #[must_use]
    pub fn stored(self, id: WaitId, rest: DedupeRest) -> Wait {
        Wait {
            id,
            tenant: self.tenant,
            thread_id: self.thread_id,
            question_id: self.question_id,
            generation: self.generation,
            rest,
            run_id: self.run_id,
            state: self.state,
            envelope: self.envelope,
            taken_over: None,
            event_id: self.event_id,
            created_at: self.created_at,
            expires_at: self.expires_at,
            closed_at: self.closed_at,
            answer: self.answer,
            resends: 0,
            note: self.note,
        }
    }
}

/// Which wait an [`Op`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitRef {
    /// One that is stored.
    Existing(WaitId),
    /// The one that the list's [`Op::Open`] stores.
    Opened,
}

/// A message to be queued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Send {
    /// Where to.
    pub destination: Destination,
    /// What happened.
    pub event: Event,
    /// 0, or the count of an event that is sent again.
    pub repeat: u32,
    /// The event's id; `None` for the envelope's own.
    pub event_id: Option<EventId>,
    /// What it must not overtake; `None` for nothing.
    pub order: Option<OrderKey>,
    /// When it happened, and from when it is due.
    pub at: Time,
}

/// One thing a store has to do. The list is carried out in order, in one transaction.
#[derive(Clone, PartialEq, Eq)]
pub enum Op {
    /// Store a new wait under the first free [`DedupeRest::choice`].
    Open(NewWait),
    /// End a wait, and withdraw what [`Event::ends_with_the_wait`] of its queued messages.
    Close {
        /// Which.
        wait: WaitId,
        /// How it ended.
        state: WaitState,
        /// When.
        at: Time,
        /// The answer that won, or the default.
        answer: Option<GivenAnswer>,
        /// Replaces the wait's note when set.
        note: Option<String>,
    },
    /// Let a duplicate's `reply_to` and `reply_with` hold.
    TakeOver {
        /// Which.
        wait: WaitId,
        /// The duplicate's text.
        envelope: Bytes,
    },
    /// Remember the id of a further publish of a question, for redeliveries.
    Remember {
        /// Which.
        wait: WaitId,
        /// The publish's id.
        event_id: EventId,
    },
    /// Count an answer that is sent again.
    Resent {
        /// Which.
        wait: WaitId,
        /// The new count.
        resends: u32,
    },
    /// Note what happened to a wait, for those who follow all that happens: once an event, before
    /// the messages that tell of it.
    Record {
        /// To which wait.
        wait: WaitRef,
        /// What happened.
        event: Event,
        /// The id that the messages have too; `None` for the envelope's own.
        event_id: Option<EventId>,
        /// When it happened.
        at: Time,
    },
    /// Queue a message.
    Send {
        /// Of which wait.
        wait: WaitRef,
        /// What.
        send: Send,
    },
}

/// A queued message that a lane has taken to send.
#[derive(Clone, Debug)]
pub struct Leased {
    /// Its number.
    pub id: OutboxId,
    /// Proves that the lane still holds it; a later lease of the same message has another.
    pub lease: u64,
    /// Where to.
    pub destination: Destination,
    /// What happened.
    pub event: Event,
    /// 0, or the count of an event that is sent again.
    pub repeat: u32,
    /// The event's id; `None` for the envelope's own.
    pub event_id: Option<EventId>,
    /// Attempts before this one.
    pub attempts: u32,
    /// When it was queued; give-up times count from here.
    pub queued_at: Time,
    /// The wait as it stands now.
    pub wait: Arc<Wait>,
}
