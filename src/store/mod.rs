//! Where waits and what is to be sent for them are kept.
//!
//! About a dozen atomic operations, each named by its intent. A store reads what it knows, asks the
//! core what follows, and writes that, all in one transaction; no transaction and no query crosses
//! the trait. Every call takes the instant it happens at. What an operation has answered `Ok` to is
//! durable.
//!
//! Operations that come often take batches; the caller may also rely on the store to commit what
//! several callers asked for at the same time together.

mod codes;
pub mod copy;
mod destinations;
mod hashes;
pub mod postgres;
mod remembered;
mod schema;
pub mod sqlite;
mod tags;
mod walk;

pub use schema::Migrated;

use answerback_contract::{
    DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, WaitState,
};
use answerback_core::{
    AnswerOutcome, AnswerRequest, CancelOutcome, Destination, Leased, Name, OutboxId, OutboxState,
    Publish, PublishOutcome, Wait, WaitId,
};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Why an operation did not happen. Nothing of it has.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store cannot work now: the disk is full, the database is away. Try again.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// What is stored is not what this version wrote.
    #[error("the store holds something unexpected: {0}")]
    Corrupt(String),
}

/// What every operation gives.
pub type StoreResult<T> = Result<T, StoreError>;

/// What came of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// New or a duplicate, and of which generation.
    pub outcome: PublishOutcome,
    /// What the wait's dedupe keys end with.
    pub rest: DedupeRest,
    /// Where messages were queued for.
    pub queued: Vec<Destination>,
    /// The deadline of a wait that was opened.
    pub expires_at: Option<Time>,
    /// When an answer lapses that was queued for its host to come for.
    pub lapses_at: Option<Time>,
    /// The wait that this publish ended: superseded, or found past its deadline.
    pub closed: Option<WaitId>,
    /// Whether a new wait was announced to nobody.
    pub unmatched: bool,
}

/// What came of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whether it won.
    pub outcome: AnswerOutcome,
    /// The wait that was meant; `None` when there is none.
    pub wait: Option<WaitId>,
    /// Where messages were queued for.
    pub queued: Vec<Destination>,
    /// When an answer lapses that was queued for its host to come for.
    pub lapses_at: Option<Time>,
}

/// What came of a withdrawal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Whether it was withdrawn.
    pub outcome: CancelOutcome,
    /// Where messages were queued for.
    pub queued: Vec<Destination>,
}

/// What a sweep over deadlines did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimedOut {
    /// The waits that ended, and when they were due.
    pub waits: Vec<(WaitId, Time)>,
    /// Where messages were queued for, each once.
    pub queued: Vec<Destination>,
    /// So many answers that no host came for died: they were valid until now.
    pub lapsed: u64,
    /// When there is more to do: the earliest deadline that is left, or end of an answer that
    /// waits for its host.
    pub next: Option<Time>,
}

/// How an attempt ended, for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The destination has it.
    Delivered,
    /// Again, not before this instant.
    RetryAt {
        /// When.
        at: Time,
        /// What happened.
        error: String,
    },
    /// Given up.
    Dead {
        /// The reason code.
        reason: &'static str,
        /// What happened.
        error: String,
    },
    /// Handed back without an attempt: the lane stops, or the breaker opened.
    Released,
}

/// The end of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which message.
    pub id: OutboxId,
    /// The lease it was held under.
    pub lease: u64,
    /// How it ended.
    pub settled: Settled,
}

/// What a lane asks for.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Which lane.
    pub destination: Destination,
    /// At most so many messages.
    pub limit: usize,
    /// At most about so many bytes of envelopes, but one message at least.
    pub bytes: usize,
    /// How long the lease holds; then the messages may be leased again.
    pub hold: Duration,
}

/// What a lane is given.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// The messages that are due, the longest due first, one an order key at most.
    pub messages: Vec<Leased>,
    /// When there will be more to lease, as far as is known now: `now` or earlier when the limit
    /// cut this lease short.
    pub next_due: Option<Time>,
}

/// Which wait a caller means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitQuery {
    /// Whose.
    pub tenant: TenantId,
    /// The question's id.
    pub question_id: QuestionId,
    /// The thread; without it the id must be of one thread only.
    pub thread_id: Option<ThreadId>,
    /// The generation; the newest without.
    pub generation: Option<Generation>,
}

/// What a [`WaitQuery`] found.
#[derive(Clone, Debug)]
pub enum Found {
    /// That wait.
    One(Arc<Wait>),
    /// No wait.
    None,
    /// Waits of several threads.
    Ambiguous(Vec<ThreadId>),
}

/// Which waits to list, newest first. All conditions must hold.
#[derive(Clone, Debug)]
pub struct WaitFilter {
    /// Whose.
    pub tenant: TenantId,
    /// In one of these states; any when empty.
    pub states: Vec<WaitState>,
    /// Of this thread.
    pub thread_id: Option<ThreadId>,
    /// Of this run.
    pub run_id: Option<String>,
    /// With these tags; the value is the tag's text, or its JSON text when it is no string.
    pub tags: Vec<(String, String)>,
    /// With an announcement at this announcer.
    pub announcer: Option<Name>,
    /// Older than this one.
    pub before: Option<WaitId>,
    /// At most so many.
    pub limit: usize,
}

impl WaitFilter {
    /// All of a tenant's.
    #[must_use]
    pub fn all(tenant: TenantId, limit: usize) -> Self {
        Self {
            tenant,
            states: Vec::new(),
            thread_id: None,
            run_id: None,
            tags: Vec::new(),
            announcer: None,
            before: None,
            limit,
        }
    }
}

/// A part of a list. A filter that few fit may give less than the limit, even nothing, and a place
/// to go on from: no call looks at a whole store.
#[derive(Clone, Debug)]
pub struct Listed<T, I> {
    /// What was found, newest first.
    pub found: Vec<T>,
    /// There may be more, older than this one; `None` at the end.
    pub next: Option<I>,
}

/// Which announcements or deliveries to list, newest first.
#[derive(Clone, Debug)]
pub struct OutboxFilter {
    /// Whose.
    pub tenant: TenantId,
    /// Announcements, or else deliveries.
    pub announcements: bool,
    /// In this state.
    pub state: Option<OutboxState>,
    /// By [`Destination::label`].
    pub label: Option<String>,
    /// Of this wait only.
    pub wait: Option<WaitId>,
    /// Older than this one.
    pub before: Option<OutboxId>,
    /// At most so many.
    pub limit: usize,
}

impl OutboxFilter {
    /// All announcements of a tenant, or else all its deliveries.
    #[must_use]
    pub fn all(tenant: TenantId, announcements: bool, limit: usize) -> Self {
        Self { tenant, announcements, state: None, label: None, wait: None, before: None, limit }
    }
}

/// An announcement or a delivery as it stands.
#[derive(Clone, Debug)]
pub struct OutboxRow {
    /// Its number.
    pub id: OutboxId,
    /// Of which wait.
    pub wait: WaitId,
    /// Where to.
    pub destination: Destination,
    /// Which conversation.
    pub thread_id: ThreadId,
    /// Which question.
    pub question_id: QuestionId,
    /// Which question under that id.
    pub generation: Generation,
    /// What happened.
    pub event: Event,
    /// The event's id; `None` for the envelope's own.
    pub event_id: Option<EventId>,
    /// Where it stands.
    pub state: OutboxState,
    /// Attempts so far.
    pub attempts: u32,
    /// When it is due, while it is queued to be sent; hosts come for what is pulled.
    pub next_attempt_at: Option<Time>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Why it is dead: the reason code.
    pub reason: Option<String>,
    /// When it was queued.
    pub queued_at: Time,
    /// When it was delivered, died or was withdrawn.
    pub finished_at: Option<Time>,
}

/// Which messages an operator wants sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// One announcement.
    Announcement(OutboxId),
    /// One delivery.
    Delivery(OutboxId),
    /// All dead ones of an announcer.
    Announcer(Name),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    /// So many are queued again, for these destinations.
    Queued(usize, Vec<Destination>),
    /// It exists but cannot be sent again: it is not dead, or the wait is over and an announcement
    /// of it pointless, or the answer is valid no longer.
    NotRetryable(OutboxState),
    /// There is no such message.
    NotFound,
}

/// How much is queued for a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Where to.
    pub destination: Destination,
    /// So many messages.
    pub queued: u64,
    /// The oldest was queued then.
    pub oldest: Option<Time>,
}

/// A reply kept under an `Idempotency-Key`, scoped by the caller to tenant, key and route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    /// SHA-256 of the request's body.
    pub body_hash: [u8; 32],
    /// The HTTP status.
    pub status: u16,
    /// The body that was sent.
    pub body: Vec<u8>,
}

/// What is forgotten, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Waits that ended so long ago, with all that was sent for them.
    pub closed: Duration,
    /// Dead messages are kept at least so long.
    pub dead: Duration,
    /// Dedupe keys and publish ids of forgotten waits (contract, section 2: 90 days).
    pub tombstones: Duration,
    /// Kept replies (contract, section 3: 24 hours).
    pub replies: Duration,
}

/// A place in the order in which events were committed: 1, 2, and so on, with gaps. None is ever
/// given twice, and whoever has read up to one misses nothing that is committed later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(pub i64);

impl Place {
    /// Before every event.
    pub const START: Self = Self(0);
}

/// Which events to read on, oldest first.
#[derive(Clone, Debug)]
pub struct FeedRequest {
    /// Whose.
    pub tenant: TenantId,
    /// Of this thread only.
    pub thread_id: Option<ThreadId>,
    /// After this place.
    pub after: Place,
    /// At most so many.
    pub limit: usize,
    /// At most about so many bytes of envelopes, but one event at least.
    pub bytes: usize,
}

/// Something that happened to a wait.
#[derive(Clone, Debug)]
pub struct FeedEvent {
    /// Its place among all events.
    pub place: Place,
    /// What: created, answered, timed out or cancelled, each once a wait at most.
    pub event: Event,
    /// The id it was announced under; `None` for the envelope's own.
    pub event_id: Option<EventId>,
    /// When it happened.
    pub at: Time,
    /// The wait as it stands now.
    pub wait: Arc<Wait>,
}

/// Events in the order in which they were committed. Few that fit among many that do not may give
/// less than the limit, even nothing, and a place to go on from.
#[derive(Clone, Debug)]
pub struct Feed {
    /// What was found, oldest first.
    pub events: Vec<FeedEvent>,
    /// All up to here was looked at.
    pub next: Place,
    /// There may be more after it already.
    pub more: bool,
}

/// Which waits something happened to, of all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The waits, in the order of their events; one may stand there twice.
    pub waits: Vec<WaitId>,
    /// All up to here was looked at.
    pub next: Place,
    /// There may be more after it already.
    pub more: bool,
}

/// What there is to know of other daemons that write the same store.
#[derive(Clone, Debug)]
pub struct Others {
    /// Look at least so often for what they did: hints may be lost.
    pub look_every: Duration,
    /// Changes when another daemon says that it committed something.
    pub hints: watch::Receiver<u64>,
}

impl Others {
    /// How long to wait before something that is due and could not be had is asked for again:
    /// another daemon has it in hand.
    pub const HELD: Duration = Duration::from_millis(50);

    /// How long to wait before the next look: up to a quarter less than [`Self::look_every`], by a
    /// random number, so that daemons that started together do not look together.
    #[must_use]
    pub fn pause(&self, random: u64) -> Duration {
        let spread = u64::try_from(self.look_every.as_millis() / 4).unwrap_or(u64::MAX);
        self.look_every.saturating_sub(Duration::from_millis(random % spread.max(1)))
    }
}

/// A store. Cheap to share; every method may be called from many tasks at once.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Takes questions in: all or, on an error, none. One result a publish, in order.
    async fn publish(&self, batch: Vec<Publish>, now: Time) -> StoreResult<Vec<Published>>;

    /// Takes an answer: the first wins.
    async fn answer(&self, request: AnswerRequest, now: Time) -> StoreResult<Answered>;

    /// Withdraws a wait; `None` when there is none.
    async fn cancel(&self, wait: WaitId, now: Time) -> StoreResult<Option<Cancelled>>;

    /// Ends up to `limit` waits whose deadline is reached, the longest due first, and declares dead
    /// (`answer-expired`) up to `limit` pull deliveries whose answers are valid no longer: no lane
    /// would ever find them (contract, section 6).
    async fn time_out(&self, limit: usize, now: Time) -> StoreResult<TimedOut>;

    /// Takes messages that are due, so that no other lane or replica sends them meanwhile. Of
    /// messages with the same order key only the oldest queued one is ever given out.
    async fn lease(&self, request: LeaseRequest, now: Time) -> StoreResult<Lease>;

    /// Records how leases ended. A settlement whose lease was lost changes nothing, but that a
    /// delivery is recorded even of a message that was withdrawn meanwhile.
    ///
    /// Gives the destinations where a message became due because the one before it in its order
    /// ended, or because it was released.
    async fn settle(&self, batch: Vec<Settlement>, now: Time) -> StoreResult<Vec<Destination>>;

    /// Marks the pull deliveries of a wait as delivered; `false` when it has none.
    async fn pulled(&self, wait: WaitId, now: Time) -> StoreResult<bool>;

    /// Finds one wait.
    async fn find(&self, query: WaitQuery) -> StoreResult<Found>;

    /// Lists waits.
    async fn list_waits(&self, filter: WaitFilter) -> StoreResult<Listed<Arc<Wait>, WaitId>>;

    /// Lists announcements or deliveries.
    async fn list_outbox(&self, filter: OutboxFilter) -> StoreResult<Listed<OutboxRow, OutboxId>>;

    /// Queues dead messages again, with a fresh age.
    async fn retry(&self, tenant: TenantId, what: Retry, now: Time) -> StoreResult<Retried>;

    /// Where anything is queued for, for starting lanes.
    async fn destinations(&self) -> StoreResult<Vec<Destination>>;

    /// Declares dead (`announcer-removed`, `route-removed`) what is queued for announcers and
    /// routes that are not among `present`; gives how many. [`Destination::ReplyTo`] and
    /// [`Destination::Pull`] are always present.
    async fn retire(&self, present: Vec<Destination>, now: Time) -> StoreResult<u64>;

    /// How much is queued where.
    async fn depths(&self) -> StoreResult<Vec<Depth>>;

    /// Stops giving out leases for a destination, across restarts, until it is woken (HTTP 410), or
    /// wakes it. [`Retry::Announcer`] wakes as well.
    async fn set_paused(&self, destination: Destination, paused: bool) -> StoreResult<()>;

    /// The destinations that are paused.
    async fn paused(&self) -> StoreResult<Vec<Destination>>;

    /// The earliest deadline of an open wait.
    async fn next_deadline(&self) -> StoreResult<Option<Time>>;

    /// The reply kept under a key, if it is still kept.
    async fn kept_reply(&self, scope: String, now: Time) -> StoreResult<Option<KeptReply>>;

    /// Keeps a reply for [`Retention::replies`]; the first one kept under a key stays.
    async fn keep_reply(&self, scope: String, reply: KeptReply, now: Time) -> StoreResult<()>;

    /// Forgets what is old; `limit` waits at most. Gives how many were forgotten.
    async fn purge(&self, retention: Retention, limit: usize, now: Time) -> StoreResult<u64>;

    /// Reads events on from a place. Those of forgotten waits are gone.
    async fn feed(&self, request: FeedRequest) -> StoreResult<Feed>;

    /// The place of the newest event that is committed.
    async fn feed_end(&self) -> StoreResult<Place>;

    /// Says which waits something happened to after a place, of `limit` events at most.
    async fn moved(&self, after: Place, limit: usize) -> StoreResult<Moved>;

    /// What there is to know of other daemons; `None` when the store is this daemon's alone.
    fn others(&self) -> Option<Others> {
        None
    }

    /// Writes and reads something, to know that the store works.
    async fn probe(&self, now: Time) -> StoreResult<()>;

    /// Waits for what is under way and lets go.
    async fn close(&self);
}
