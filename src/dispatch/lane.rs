//! One destination's work.

use super::attempt::{Report, Work};
use super::outlet::{Outgoing, Outlet};
use super::{Handle, Shared, batch};
use crate::metrics::LaneMetrics;
use crate::store::{LeaseRequest, Others, Settled, Settlement};
use answerback_contract::{Rejection, Time};
use answerback_core::breaker::{Allowance, Breaker, Threshold};
use answerback_core::retry::Schedule;
use answerback_core::{Destination, Leased, message};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// At most so many bytes of messages are leased at once, so that memory stays bounded.
pub(super) const LEASE_BYTES: usize = 8 << 20;

/// A lane looks into the store at least so often, in case a nudge was missed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A lane for a place that an envelope named ends when it had nothing to do for so long.
const IDLE: Duration = Duration::from_secs(60);

/// How long a lease outlasts the attempt it is for: time to record the outcome.
const SETTLE_MARGIN: Duration = Duration::from_secs(60);

/// A message that was leased ahead is sent within this time or handed back: meanwhile its wait may
/// have ended, and an announcement of it would go out late.
const AHEAD: Duration = Duration::from_millis(250);

/// Leases that the store took so long to give are handed back: they count from when they were asked
/// for, and one that runs out under way lets the same message be sent by another at the same time.
const LATE: Duration = Duration::from_secs(20);

/// While a batch that could have carried more is under way, what falls due gathers for the next one,
/// at most so long. As with Nagle's algorithm: batches fill by themselves when there is much to send,
/// and nothing waits when there is little.
const GATHER: Duration = Duration::from_millis(20);

/// A lane that is told of every message by itself looks into the store no more often than this: one
/// look finds what a whole commit queued.
const SPACING: Duration = Duration::from_millis(2);
/// It spends no more than half of its time looking, but waits no longer than this for its next look.
const MOST_SPACING: Duration = Duration::from_millis(20);

/// Outcomes that are known but not recorded yet; beyond, nothing more is leased.
const UNSETTLED: usize = 4_096;

/// Messages that one lease asks for, at most.
const LEASE_MESSAGES: usize = 1_000;

/// After a failed call of the store.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// The bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// Batches under way at once.
    pub max_in_flight: usize,
    /// Bytes a message, as its service counts them; larger ones are dead without an attempt.
    pub max_bytes: usize,
    /// The bound on one attempt.
    pub attempt_timeout: Duration,
}

/// Everything a lane needs to know.
pub struct LaneConfig {
    /// Where to.
    pub destination: Destination,
    /// Through what.
    pub outlet: Arc<dyn Outlet>,
    /// Its bounds.
    pub limits: LaneLimits,
    /// When to send again.
    pub schedule: Schedule,
    /// When to stop asking.
    pub breaker: Threshold,
    /// Whether lifecycle events carry the answer.
    pub include_answer: bool,
}

pub(super) struct Lane {
    shared: Arc<Shared>,
    config: Arc<LaneConfig>,
    handle: Arc<Handle>,
    breaker: Breaker,
    paused: bool,
    metrics: LaneMetrics,
    /// Leased ahead of their turn, since then.
    ahead: VecDeque<Vec<Outgoing>>,
    ahead_since: Instant,
    /// Until then what falls due gathers, while anything is under way.
    gather_until: Option<Instant>,
    /// The last look into the store found all there was: the next one is not before this.
    look_after: Option<Instant>,
    /// What that look said of what is left: no other is needed before somebody nudges, the time comes,
    /// or something is recorded that is to be sent again.
    rest: Option<Rest>,
    /// Under way.
    batches: JoinSet<Report>,
    /// To be recorded as soon as the recording that is under way ends: so one commit takes them all.
    unsettled: Vec<Settlement>,
    settling: JoinSet<Again>,
}

/// Whether anything of what was recorded is to be sent again.
struct Again(bool);

/// What is left in the store after a look that found all there was.
#[derive(Clone, Copy)]
enum Rest {
    /// It is due then.
    DueAt(Time),
    /// Nothing that has a time.
    Nothing,
}

impl From<Rest> for Next {
    fn from(rest: Rest) -> Self {
        match rest {
            Rest::DueAt(at) => Self::At(at),
            Rest::Nothing => Self::Nothing,
        }
    }
}

/// What the lane waits for when it has leased all it may.
enum Next {
    /// A batch has to finish first.
    Batch,
    /// Nothing before this instant.
    At(Time),
    /// Nothing that is known of.
    Nothing,
    /// What falls due gathers for so long, or until a batch finishes.
    Gathered(Duration),
    /// The store failed.
    Store,
    /// Nothing until somebody wakes the destination.
    Wake,
}

impl Lane {
    pub(super) fn new(
        shared: Arc<Shared>,
        config: LaneConfig,
        handle: Arc<Handle>,
        paused: bool,
    ) -> Self {
        Self {
            breaker: Breaker::new(config.breaker),
            metrics: LaneMetrics::of(&config.destination),
            config: Arc::new(config),
            shared,
            handle,
            paused,
            ahead: VecDeque::new(),
            ahead_since: Instant::now(),
            gather_until: None,
            look_after: None,
            rest: None,
            batches: JoinSet::new(),
            unsettled: Vec::new(),
            settling: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut idle_since = self.shared.clock.now();
        loop {
            let next = self.lease().await;
            if !self.batches.is_empty() {
                idle_since = self.shared.clock.now();
            }
            let pause = match next {
                Next::At(at) => self.shared.clock.now().until(at).min(self.look_again()),
                Next::Batch | Next::Wake | Next::Nothing => self.look_again(),
                Next::Gathered(pause) => pause,
                Next::Store => STORE_PAUSE,
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(report) = self.batches.join_next() => self.take(report).await,
                Some(recorded) = self.settling.join_next() => self.recorded(recorded),
                () = self.handle.nudged.notified(), if !matches!(next, Next::Batch | Next::Gathered(_)) => {
                    self.rest = None;
                }
                () = tokio::time::sleep(pause) => {
                    self.rest = None;
                    let now = self.shared.clock.now();
                    // Only after a look that found nothing: a nudge that is waited out is no idleness.
                    if matches!(next, Next::Nothing)
                        && self.may_end(idle_since, now)
                        && self.shared.close_lane(&self.config.destination, &self.handle)
                    {
                        break;
                    }
                }
            }
            // Whatever else has finished meanwhile frees room before the next lease.
            while let Some(report) = self.batches.try_join_next() {
                self.take(report).await;
            }
            self.settle();
        }
        self.hand_back();
        while let Some(report) = self.batches.join_next().await {
            self.take(report).await;
            self.settle();
        }
        while self.settling.join_next().await.is_some() {
            self.settle();
        }
        self.config.outlet.close().await;
    }

    /// How long at most until the next look: nobody nudges for what another daemon queued.
    fn look_again(&self) -> Duration {
        let others = self.shared.others.as_ref();
        others.map_or(LOOK_AGAIN, |others| others.pause(self.shared.clock.random()).min(LOOK_AGAIN))
    }

    fn may_end(&self, idle_since: Time, now: Time) -> bool {
        matches!(self.config.destination, Destination::ReplyTo(_))
            && self.batches.is_empty()
            && self.settling.is_empty()
            && idle_since.after(IDLE) <= now
    }

    /// Leases and sends as much as fits; says what to wait for then.
    async fn lease(&mut self) -> Next {
        if self.handle.woken.swap(false, Ordering::SeqCst) && !self.wake().await {
            return Next::Store;
        }
        loop {
            if self.paused && !self.woken_elsewhere().await {
                self.hand_back();
                return Next::Wake;
            }
            let most = self.config.limits.max_in_flight;
            let free = most.saturating_sub(self.batches.len());
            if free == 0 || self.unsettled.len() >= UNSETTLED {
                return Next::Batch;
            }
            let now = self.shared.clock.now();
            let limits = self.config.outlet.limits();
            let (limit, trial) = match self.breaker.allow(now) {
                Allowance::All => ((free + most).saturating_mul(limits.batch_messages), false),
                Allowance::Trial => {
                    self.hand_back();
                    (1, true)
                }
                Allowance::NoneUntil(at) => {
                    self.hand_back();
                    return Next::At(at);
                }
                Allowance::AwaitTrial => return Next::Batch,
            };
            if !trial && self.send_ahead(free) {
                continue;
            }
            if let Some(rest) = self.rest {
                if trial {
                    self.breaker.trial_unused(now);
                }
                return rest.into();
            }
            if let (false, Some(pause)) = (trial, self.gathering()) {
                return Next::Gathered(pause);
            }
            let request = LeaseRequest {
                destination: self.config.destination.clone(),
                limit: limit.min(LEASE_MESSAGES),
                bytes: LEASE_BYTES,
                hold: self.hold(),
            };
            let asked = Instant::now();
            let leased = self.shared.store.lease(request, now).await;
            self.look_after = Some(asked + (2 * asked.elapsed()).clamp(SPACING, MOST_SPACING));
            let lease = match leased {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::warn!(destination = self.config.destination.label(), %error, "nothing can be leased");
                    if trial {
                        self.breaker.trial_unused(now);
                    }
                    return Next::Store;
                }
            };
            if lease.messages.is_empty() {
                if trial {
                    self.breaker.trial_unused(now);
                }
                // What is due already is in another daemon's hands.
                let held = self.shared.others.as_ref().map_or(SPACING, |_| Others::HELD);
                let soonest = now.after(held);
                return self.found_all(lease.next_due.map(|due| due.max(soonest)));
            }
            let next_due = lease.next_due;
            let more = next_due.is_some_and(|at| at <= now);
            if more {
                self.look_after = None;
            }
            let sendable = self.prepare_all(lease.messages, now);
            self.ahead = batch::cut(sendable, limits).into();
            self.ahead_since = Instant::now();
            if asked.elapsed() > LATE {
                self.hand_back();
            }
            if trial && self.ahead.is_empty() {
                self.breaker.trial_unused(now);
                continue;
            }
            if !more && !trial {
                self.found_all(next_due);
            }
            self.send_ahead(free);
            if trial || !self.ahead.is_empty() {
                return Next::Batch;
            }
            if let Some(rest) = self.rest {
                return rest.into();
            }
        }
    }

    /// Notes what a look left that found all there was.
    fn found_all(&mut self, next_due: Option<Time>) -> Next {
        let rest = next_due.map_or(Rest::Nothing, Rest::DueAt);
        self.rest = Some(rest);
        rest.into()
    }

    /// How long to wait for more to fall due before the store is looked into; `None` for not at all.
    fn gathering(&self) -> Option<Duration> {
        let fuller = self.gather_until.filter(|_| !self.batches.is_empty());
        let pause = fuller.max(self.look_after)?.saturating_duration_since(Instant::now());
        (!pause.is_zero()).then_some(pause)
    }

    /// How long a lease holds: its turn, its attempt, and the recording.
    fn hold(&self) -> Duration {
        self.config.limits.attempt_timeout + AHEAD + SETTLE_MARGIN
    }

    /// Sends what was leased ahead, as much as there is room for; `false` when there was nothing.
    fn send_ahead(&mut self, free: usize) -> bool {
        if self.ahead.is_empty() {
            return false;
        }
        if self.ahead_since.elapsed() > AHEAD {
            self.hand_back();
            return false;
        }
        let fits = free.min(self.ahead.len());
        let full = self.config.outlet.limits().batch_messages;
        let last = self.ahead.get(fits.saturating_sub(1)).map_or(full, Vec::len);
        self.gather_until = (last < full).then(|| Instant::now() + GATHER);
        for batch in self.ahead.drain(..fits) {
            let work = Work {
                shared: Arc::clone(&self.shared),
                config: Arc::clone(&self.config),
                metrics: self.metrics.clone(),
            };
            self.batches.spawn(work.attempt(batch));
        }
        true
    }

    /// Gives up the leases of what was leased ahead.
    fn hand_back(&mut self) {
        for out in self.ahead.drain(..).flatten() {
            let (id, lease) = (out.leased.id, out.leased.lease);
            self.unsettled.push(Settlement { id, lease, settled: Settled::Released });
        }
        self.settle();
    }

    /// Starts recording what is unsettled, unless a recording is under way.
    fn settle(&mut self) {
        if self.unsettled.is_empty() || !self.settling.is_empty() {
            return;
        }
        let settlements = std::mem::take(&mut self.unsettled);
        let shared = Arc::clone(&self.shared);
        self.settling.spawn(async move { settle(&shared, settlements).await });
    }

    /// Learns of a finished recording.
    fn recorded(&mut self, recorded: Result<Again, tokio::task::JoinError>) {
        if !matches!(recorded, Ok(Again(false))) {
            self.rest = None;
        }
    }

    /// What of a lease can be sent; the rest is settled.
    fn prepare_all(&mut self, leased: Vec<Leased>, now: Time) -> Vec<Outgoing> {
        let mut sendable = Vec::with_capacity(leased.len());
        for leased in leased {
            match self.prepare(leased, now) {
                Ok(out) => sendable.push(out),
                Err(settlement) => self.unsettled.push(settlement),
            }
        }
        self.settle();
        sendable
    }

    /// What is to be sent, or why it cannot be.
    fn prepare(&self, leased: Leased, now: Time) -> Result<Outgoing, Settlement> {
        let dead = |leased: &Leased, reason, error: String| {
            self.metrics.dead.increment(1);
            Settlement {
                id: leased.id,
                lease: leased.lease,
                settled: Settled::Dead { reason, error },
            }
        };
        let expired = !leased.destination.is_announcer()
            && leased.wait.answer.as_ref().is_some_and(|answer| !answer.is_valid(now));
        if expired {
            return Err(dead(
                &leased,
                "answer-expired",
                "the answer's valid_until is past".to_owned(),
            ));
        }
        let message = match message::of(&leased, self.config.include_answer) {
            Ok(message) => message,
            Err(refusal) => return Err(dead(&leased, "unreadable", refusal.to_string())),
        };
        let size = self.config.outlet.bytes_of(&message);
        let most = self.config.limits.max_bytes;
        if size > most {
            let error = format!("the message has {size} bytes; {most} are the limit here");
            return Err(dead(&leased, Rejection::TooLarge.code(), error));
        }
        Ok(Outgoing { message, leased: Arc::new(leased) })
    }

    /// Learns from a finished batch.
    async fn take(&mut self, report: Result<Report, tokio::task::JoinError>) {
        let now = self.shared.clock.now();
        // A batch that panicked has no report: its leases run out and its messages come again.
        let Ok(Report { healthy, gone, settlements }) = report else {
            return self.breaker.failed(now);
        };
        self.unsettled.extend(settlements);
        self.gather_until = None;
        match (gone, healthy) {
            (true, _) => self.pause().await,
            (false, true) => self.breaker.succeeded(),
            (false, false) => self.breaker.failed(now),
        }
    }

    /// An operator has the destination tried again. The pause may have been stored after that: so it is
    /// taken back here as well, or no daemon would be given anything. `false` if the store fails.
    async fn wake(&mut self) -> bool {
        if self.paused {
            let destination = self.config.destination.clone();
            if let Err(error) = self.shared.store.set_paused(destination, false).await {
                tracing::warn!(destination = self.config.destination.label(), %error, "the pause cannot be taken back yet");
                self.handle.woken.store(true, Ordering::SeqCst);
                return false;
            }
        }
        self.paused = false;
        self.breaker.succeeded();
        true
    }

    /// Whether the operator had a paused destination tried again at another daemon.
    async fn woken_elsewhere(&mut self) -> bool {
        if self.shared.others.is_none() {
            return false;
        }
        let woken = match self.shared.store.paused().await {
            Ok(paused) => !paused.contains(&self.config.destination),
            Err(_) => false,
        };
        if woken {
            self.paused = false;
            self.breaker.succeeded();
        }
        woken
    }

    /// Stops sending until an operator has the destination tried again.
    async fn pause(&mut self) {
        self.paused = true;
        let name = self.config.destination.label();
        tracing::error!(
            destination = name,
            "the destination answered that it is gone: paused until it is retried by an operator"
        );
        let destination = self.config.destination.clone();
        if let Err(error) = self.shared.store.set_paused(destination, true).await {
            tracing::warn!(destination = name, %error, "the pause is not stored and ends with this process");
        }
    }
}

/// Records how leases ended, again and again while the store fails, until the leases are over: then
/// the messages are sent again, which their receivers are told by the dedupe key.
async fn settle(shared: &Shared, settlements: Vec<Settlement>) -> Again {
    let started = shared.clock.now();
    let over = |s: &Settlement| matches!(s.settled, Settled::Delivered | Settled::Dead { .. });
    let again = Again(!settlements.iter().all(over));
    loop {
        let now = shared.clock.now();
        match shared.store.settle(settlements.clone(), now).await {
            Ok(due) => {
                shared.nudge(&due);
                return again;
            }
            Err(error) if started.after(SETTLE_MARGIN) <= now => {
                tracing::error!(%error, messages = settlements.len(), "outcomes could not be recorded: these messages will be sent again");
                return Again(true);
            }
            Err(error) => {
                tracing::warn!(%error, "outcomes cannot be recorded yet");
                tokio::time::sleep(STORE_PAUSE).await;
            }
        }
    }
}
