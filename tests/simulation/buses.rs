//! The other side: announcers' buses and hosts, with latency, failures and memory.

use crate::ledger::Line;
use crate::life::Life;
use crate::random::Random;
use crate::world::World;
use answerback::contract::{
    Attempt, Bytes, DedupeKey, Event, Generation, Limits, Message, Outcome, QuestionId, Rejection,
    TenantId, ThreadId,
};
use answerback::core::matching::Matcher;
use answerback::core::reply_to::Allow;
use answerback::core::{AnnouncerRule, Destination, Name, OutboxId, RouteRule, Rules, WaitId};
use answerback::dispatch::{LaneConfig, LaneLimits, Outgoing, Outlet, ReplyLanes};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Announcers and how much a call of each carries.
pub(crate) const ANNOUNCERS: [(&str, usize); 3] = [("ordered", 5), ("loose", 10), ("table", 1)];
pub(crate) const ROUTE: &str = "host";

pub(crate) fn is_ordered(announcer: &str) -> bool {
    announcer != "loose"
}

/// Threads `r…` are answered by a route, `p…` are pulled, others go where their envelopes say.
pub(crate) fn rules(plan: &crate::plan::Plan) -> Rules {
    let tenant = TenantId::default_tenant;
    let announcer = |(name, _): (&str, usize)| AnnouncerRule {
        name: Name::new(name),
        tenant: tenant(),
        matcher: Matcher::default(),
        events: match name {
            "ordered" => Event::ALL.to_vec(),
            "loose" => vec![Event::Created],
            _ => Vec::new(),
        },
        follows_state: name == "table",
        ordered: is_ordered(name),
    };
    let route = |name: &str, prefix: &str, pull| RouteRule {
        name: Name::new(name),
        tenant: tenant(),
        matcher: Matcher { thread_prefixes: vec![prefix.to_owned()], ..Matcher::default() },
        pull,
    };
    Rules {
        announcers: ANNOUNCERS.into_iter().map(announcer).collect(),
        routes: vec![route(ROUTE, "r", false), route("kept", "p", true)],
        reply_to: Allow::read(&["http://one.example", "http://two.example"]).unwrap(),
        republished: plan.republished,
        enforce_allowed_actions: false,
    }
}

/// A message that reached the other side.
pub(crate) struct Arrival {
    pub(crate) id: OutboxId,
    pub(crate) wait: WaitId,
    pub(crate) destination: Destination,
    pub(crate) line: Option<Line>,
    pub(crate) event: Event,
    pub(crate) repeat: u32,
    pub(crate) generation: Generation,
    pub(crate) thread: ThreadId,
    pub(crate) question: QuestionId,
    pub(crate) dedupe_key: DedupeKey,
    pub(crate) payload: Bytes,
}

struct UnderWay {
    id: OutboxId,
    line: Option<Line>,
    life: Arc<Life>,
}

#[derive(Default)]
pub(crate) struct Buses {
    pub(crate) arrivals: Vec<Arrival>,
    /// What the other side has said that it has.
    pub(crate) confirmed: BTreeSet<OutboxId>,
    /// What it has said that it will never take, and how.
    pub(crate) refused: BTreeMap<OutboxId, BTreeSet<&'static str>>,
    attempted: BTreeSet<(OutboxId, u64)>,
    under_way: BTreeMap<u64, UnderWay>,
    attempts: u64,
}

/// What an attempt will meet.
struct Fate {
    mood: Mood,
    latency: Duration,
    afterwards: Duration,
    random: Random,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Fine,
    /// Nothing gets through.
    Down,
    /// No reply ever; it got through, or not.
    Hangs(bool),
    /// Each message for itself.
    Mixed,
    /// 410: from announcers; hosts say that they are done.
    Gone,
    /// It got through, and the reply is cut short.
    Short,
}

/// The end of an attempt, also of one that is dropped.
struct Ending {
    world: Arc<World>,
    attempts: Vec<u64>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.world.state();
        for attempt in &self.attempts {
            state.buses.under_way.remove(attempt);
        }
    }
}

pub(crate) struct SimOutlet {
    destination: Destination,
    batch: usize,
    world: Arc<World>,
    life: Arc<Life>,
}

impl SimOutlet {
    fn fate(&self) -> Fate {
        let mut state = self.world.state();
        let stormy = state.stormy;
        let random = &mut state.random;
        let mood = if stormy && random.chance(self.world.plan.weather.bus_trouble) {
            match random.below(12) {
                0..=3 => Mood::Down,
                4 => Mood::Hangs(random.chance(500)),
                5..=8 => Mood::Mixed,
                9 if self.destination.is_announcer() => Mood::Gone,
                9 => Mood::Mixed,
                10 => Mood::Short,
                _ => Mood::Down,
            }
        } else {
            Mood::Fine
        };
        let slow = stormy && random.chance(50);
        let latency = if slow { random.between(100, 2_000) } else { random.below(20) };
        Fate {
            mood,
            latency: Duration::from_millis(latency),
            afterwards: Duration::from_millis(random.below(5)),
            random: Random::new(random.next(), 0),
        }
    }

    /// The attempt leaves the replica; what must not be out at the same time is told.
    fn begin(&self, batch: &[Outgoing], mood: Mood) -> Ending {
        let mut state = self.world.state();
        let mut wrong = Vec::new();
        let mut numbers = Vec::new();
        if batch.len() > self.batch {
            wrong.push(format!("a batch of {} for {}", batch.len(), self.destination.label()));
        }
        for out in batch {
            let (id, line) = (out.leased.id, Line::of(&out.leased));
            if !state.buses.attempted.insert((id, out.leased.lease)) {
                wrong.push(format!("message {} is sent twice under one lease", id.0));
            }
            // The clocks of others may be ahead, but not by as much as a lease outlasts its attempt.
            if !self.life.ever_stood_still() && !state.ledger.holds(id, out.leased.lease) {
                wrong.push(format!("message {} is sent under a lease that is over", id.0));
            }
            for other in state.buses.under_way.values() {
                let rivals = other.id == id || (line.is_some() && other.line == line);
                if rivals && !other.life.is_over() && !state.ledger.lapsed.contains(&other.id) {
                    wrong.push(format!(
                        "message {} is sent while {} is under way, whose lease did not run out",
                        id.0, other.id.0
                    ));
                }
            }
            state.buses.attempts += 1;
            let number = state.buses.attempts;
            let under_way = UnderWay { id, line, life: Arc::clone(&self.life) };
            state.buses.under_way.insert(number, under_way);
            numbers.push(number);
            state.trace.note(format_args!(
                "r{}.{} sends {} to {} ({mood:?})",
                self.life.replica,
                self.life.run,
                id.0,
                self.destination.label()
            ));
        }
        wrong.into_iter().for_each(|wrong| state.wrong(wrong));
        drop(state);
        Ending { world: Arc::clone(&self.world), attempts: numbers }
    }

    fn arrive(&self, out: &Outgoing) {
        let mut state = self.world.state();
        state.trace.note(format_args!(
            "  {} arrives at {}",
            out.leased.id.0,
            self.destination.label()
        ));
        state.buses.arrivals.push(Arrival {
            id: out.leased.id,
            wait: out.leased.wait.id,
            destination: self.destination.clone(),
            line: Line::of(&out.leased),
            event: out.leased.event,
            repeat: out.leased.repeat,
            generation: out.message.generation,
            thread: out.message.thread_id.clone(),
            question: out.message.question_id.clone(),
            dedupe_key: out.message.dedupe_key.clone(),
            payload: out.message.payload.clone(),
        });
    }

    /// One message's outcome, with what it does at the other side.
    fn outcome(&self, out: &Outgoing, mood: Mood, random: &mut Random) -> Outcome {
        let rejection = match (mood, random.below(10)) {
            (Mood::Gone, _) => Some(Rejection::Gone),
            (Mood::Mixed, 0) => Some(Rejection::Refused),
            (Mood::Mixed, 1) if !self.destination.is_announcer() => Some(Rejection::HostClosed),
            (Mood::Mixed, 2 | 3) => {
                self.arrive(out);
                return Outcome::retry("it arrived, but the reply is an error");
            }
            (Mood::Mixed, 4) => {
                let after = Some(Duration::from_millis(random.below(4_000)));
                return Outcome::Retry { reason: "busy".to_owned(), after };
            }
            (Mood::Mixed, 5 | 6) | (Mood::Down | Mood::Hangs(_), _) => {
                return Outcome::retry("down");
            }
            _ => None,
        };
        if let Some(rejection) = rejection {
            let mut state = self.world.state();
            state.buses.refused.entry(out.leased.id).or_default().insert(rejection.code());
            return Outcome::Rejected { rejection, reason: "no".to_owned() };
        }
        self.arrive(out);
        self.world.state().buses.confirmed.insert(out.leased.id);
        Outcome::Delivered
    }
}

#[async_trait]
impl Outlet for SimOutlet {
    fn limits(&self) -> Limits {
        Limits { batch_messages: self.batch, batch_bytes: 1 << 20, message_bytes: 1 << 20 }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn send(&self, batch: &[Outgoing], _attempt: Attempt) -> Vec<Outcome> {
        self.life.pass(Duration::ZERO).await;
        let Fate { mood, latency, afterwards, mut random } = self.fate();
        let _ending = self.begin(batch, mood);
        self.life.pass(latency).await;
        if let Mood::Hangs(arrives) = mood {
            if arrives {
                batch.iter().for_each(|out| self.arrive(out));
            }
            std::future::pending::<()>().await;
        }
        let mut outcomes: Vec<Outcome> =
            batch.iter().map(|out| self.outcome(out, mood, &mut random)).collect();
        if mood == Mood::Short {
            outcomes.truncate(random.index(batch.len() + 1));
        }
        self.life.pass(afterwards).await;
        outcomes
    }
}

/// Makes the lanes of one run of a replica.
pub(crate) struct Lanes {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
}

impl Lanes {
    pub(crate) fn configured(&self) -> Vec<LaneConfig> {
        let announcer =
            |(name, batch): (&str, usize)| self.of(&Destination::Announcer(Name::new(name)), batch);
        let mut lanes: Vec<LaneConfig> = ANNOUNCERS.into_iter().map(announcer).collect();
        lanes.push(self.of(&Destination::Route(Name::new(ROUTE)), 1));
        lanes
    }

    fn of(&self, destination: &Destination, batch: usize) -> LaneConfig {
        let plan = &self.world.plan;
        LaneConfig {
            destination: destination.clone(),
            outlet: Arc::new(SimOutlet {
                destination: destination.clone(),
                batch,
                world: Arc::clone(&self.world),
                life: Arc::clone(&self.life),
            }),
            limits: LaneLimits {
                max_in_flight: plan.max_in_flight,
                max_bytes: 1 << 20,
                attempt_timeout: plan.attempt_timeout,
            },
            schedule: plan.schedule,
            breaker: plan.breaker,
            include_answer: false,
        }
    }
}

impl ReplyLanes for Lanes {
    fn lane(&self, destination: &Destination) -> LaneConfig {
        self.of(destination, 1)
    }
}
