//! What decisions ask for, of all the jobs of a batch, written with a statement a kind of thing.
//!
//! The jobs of one call are about different waits, and what they do to lines is done in this order:
//! messages are withdrawn, those behind them move up, new ones line up at the end. So the outcome is
//! that of the jobs one after the other.

use super::connect::{Lent, Param};
use super::fail::{Done, Fail};
use super::line::{self, Lines, Queued};
use super::shared::Shared;
use super::{hashes, rows};
use crate::store::codes::{NEVER, wait_code};
use crate::store::destinations::DestinationId;
use answerback_contract::{Bytes, DedupeRest, Event, EventId, Time, WaitState};
use answerback_core::{Destination, GivenAnswer, NewWait, Op, Wait, WaitId, WaitRef};
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use tokio_postgres::types::Type;

/// Numbers for new rows, drawn before it is known how many are needed.
pub(super) struct Ids(Vec<i64>);

impl Ids {
    /// Draws so many numbers for waits and for messages; what is left over is never used.
    pub(super) async fn draw(lent: &Lent, waits: usize, messages: usize) -> Done<(Self, Self)> {
        if waits + messages == 0 {
            return Ok((Self(Vec::new()), Self(Vec::new())));
        }
        let [waits, messages] = [waits, messages].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        // In one row: a row for each would cost more than all the rest.
        let found = lent
            .query(
                "SELECT ARRAY(SELECT nextval('wait_ids') FROM generate_series(1, $1)), \
                 ARRAY(SELECT nextval('outbox_ids') FROM generate_series(1, $2))",
                &[(&waits, Type::INT8), (&messages, Type::INT8)],
            )
            .await?;
        let row = found.first().ok_or_else(|| Fail::Corrupt("no numbers".to_owned()))?;
        let ids = |column| -> Done<Self> {
            let mut ids: Vec<i64> = rows::get(row, column)?;
            ids.sort_unstable_by(|a, b| b.cmp(a));
            Ok(Self(ids))
        };
        Ok((ids(0)?, ids(1)?))
    }

    pub(super) fn next(&mut self) -> Done<i64> {
        self.0.pop().ok_or_else(|| Fail::Corrupt("more rows than were counted on".to_owned()))
    }
}

/// How many messages one decision queues at most: the end of one wait and the beginning of another,
/// each told to every announcer, and an answer.
pub(super) fn most_messages(shared: &Shared) -> usize {
    2 * shared.rules.announcers.len() + 2
}

/// What one job did.
#[derive(Default)]
pub(super) struct Carried {
    /// The wait that was opened.
    pub(super) opened: Option<WaitId>,
    /// Where something was queued for or became due, each once.
    pub(super) queued: Vec<DestinationId>,
    /// When the first answer lapses that was queued for its host to come for.
    pub(super) lapses_at: Option<Time>,
    /// Whether a wait was ended.
    closed: bool,
}

struct Close {
    wait: WaitId,
    state: WaitState,
    at: Time,
    answer: Option<GivenAnswer>,
    note: Option<String>,
}

struct Open {
    id: WaitId,
    choice: u32,
    wait: NewWait,
}

struct Record {
    wait: WaitId,
    event: Event,
    event_id: Option<EventId>,
    at: Time,
}

/// What a batch writes.
#[derive(Default)]
pub(super) struct Writes {
    carried: Vec<Carried>,
    opens: Vec<Open>,
    closes: Vec<Close>,
    taken_over: Vec<(WaitId, Bytes, i32)>,
    remembered: Vec<(WaitId, hashes::Hash)>,
    resent: Vec<(WaitId, i32)>,
    messages: Vec<Queued>,
    records: Vec<Record>,
}

/// What a job decided about.
pub(super) struct Decided<'d> {
    /// The wait that exists.
    pub(super) wait: Option<&'d Wait>,
    /// What follows.
    pub(super) ops: &'d [Op],
    /// Of a wait that is opened: its number and its choice of dedupe rest.
    pub(super) fresh: Option<(WaitId, u32)>,
}

impl Writes {
    /// Whether anything is told by the feed.
    pub(super) fn has_events(&self) -> bool {
        !self.records.is_empty()
    }

    /// Notes down what a job does.
    pub(super) fn add(
        &mut self,
        shared: &Shared,
        ids: &mut Ids,
        decided: &Decided<'_>,
    ) -> Done<()> {
        let mut carried = Carried::default();
        let mut valid_until = decided.wait.and_then(|w| w.answer.as_ref()?.valid_until);
        let fresh = decided.fresh;
        let id_of = |wait: WaitRef| match (wait, fresh) {
            (WaitRef::Existing(wait), _) | (WaitRef::Opened, Some((wait, _))) => Ok(wait),
            (WaitRef::Opened, None) => Err(Fail::Corrupt("something of no wait".to_owned())),
        };
        for op in decided.ops {
            match op {
                Op::Open(wait) => {
                    let Some((id, choice)) = fresh else {
                        return Err(Fail::Corrupt("a wait without a number".to_owned()));
                    };
                    valid_until = wait.answer.as_ref().and_then(|a| a.valid_until);
                    carried.opened = Some(id);
                    self.opens.push(Open { id, choice, wait: wait.clone() });
                }
                Op::Close { wait, state, at, answer, note } => {
                    valid_until = answer.as_ref().and_then(|a| a.valid_until);
                    carried.closed = true;
                    self.closes.push(Close {
                        wait: *wait,
                        state: *state,
                        at: *at,
                        answer: answer.clone(),
                        note: note.clone(),
                    });
                }
                Op::TakeOver { wait, envelope } => {
                    let first = decided.wait.map_or(0, |w| w.envelope.len());
                    let bytes = i32::try_from(first + envelope.len()).unwrap_or(i32::MAX);
                    self.taken_over.push((*wait, envelope.clone(), bytes));
                }
                Op::Remember { wait, event_id } => {
                    let Some(known) = decided.wait else {
                        return Err(Fail::Corrupt("a publish of no wait".to_owned()));
                    };
                    let (tenant, thread) = (&known.tenant, &known.thread_id);
                    let hash = hashes::event(tenant, thread, &known.question_id, event_id.as_str());
                    self.remembered.push((*wait, hash));
                }
                Op::Resent { wait, resends } => {
                    self.resent.push((*wait, i32::try_from(*resends).unwrap_or(i32::MAX)));
                }
                Op::Record { wait, event, event_id, at } => self.records.push(Record {
                    wait: id_of(*wait)?,
                    event: *event,
                    event_id: event_id.clone(),
                    at: *at,
                }),
                Op::Send { wait, send } => {
                    let Some(destination) = shared.id(&send.destination) else {
                        return Err(Fail::Corrupt("a destination without a number".to_owned()));
                    };
                    let due = match send.destination {
                        // What its host comes for is due to die when the answer expires.
                        Destination::Pull => valid_until.map_or(NEVER, Time::millis),
                        _ => send.at.millis(),
                    };
                    if send.destination == Destination::Pull && due != NEVER {
                        let at = Time::from_millis(due);
                        carried.lapses_at =
                            Some(carried.lapses_at.map_or(at, |first| first.min(at)));
                    }
                    if !carried.queued.contains(&destination) {
                        carried.queued.push(destination);
                    }
                    self.messages.push(Queued {
                        id: ids.next()?,
                        wait: id_of(*wait)?,
                        destination,
                        event: send.event,
                        repeat: send.repeat,
                        event_id: send.event_id.clone(),
                        order: send.order.map(|key| key.0),
                        at: send.at,
                        due,
                    });
                }
            }
        }
        self.carried.push(carried);
        Ok(())
    }

    /// Writes it all; with `commit` ends the transaction as well. What each job did, in order.
    pub(super) async fn write(
        mut self,
        lent: &Lent,
        now: Time,
        commit: bool,
    ) -> Done<Vec<Carried>> {
        // In one order everywhere, so that two daemons that insert the same never block each other.
        self.opens.sort_by_cached_key(|open| {
            hashes::identity(&open.wait.tenant, &open.wait.thread_id, &open.wait.question_id)
        });
        let in_line = self.messages.iter().any(|m| m.order.is_some());
        let closed: Vec<i64> = self.closes.iter().map(|close| close.wait.0).collect();
        let mut promoted = Vec::new();
        {
            // All of one go travels in one round trip, in this order.
            let mut go: Vec<BoxFuture<'_, Done<Vec<DestinationId>>>> = Vec::new();
            if !closed.is_empty() {
                go.push(self.close(lent).map(none).boxed());
                go.push(withdraw(lent, &closed, now).map(none).boxed());
                go.push(move_up(lent, &closed, now).boxed());
            }
            if !self.opens.is_empty() {
                go.push(self.open(lent).map(none).boxed());
            }
            if !self.taken_over.is_empty() {
                go.push(self.take_over(lent).map(none).boxed());
            }
            if !self.remembered.is_empty() {
                go.push(self.remember(lent).map(none).boxed());
            }
            if !self.resent.is_empty() {
                go.push(self.resend(lent).map(none).boxed());
            }
            if !self.messages.is_empty() {
                go.push(line::enqueue(lent, &self.messages, now).map(none).boxed());
            }
            go.push(self.record(lent).map(none).boxed());
            if commit && !in_line {
                go.push(lent.commit().map(none).boxed());
            }
            for destinations in try_join_all(go).await? {
                promoted.extend(destinations);
            }
        }
        // Lining up may take more than one go.
        if commit && in_line {
            lent.commit().await?;
        }
        for carried in self.carried.iter_mut().filter(|carried| carried.closed) {
            for destination in &promoted {
                if !carried.queued.contains(destination) {
                    carried.queued.push(*destination);
                }
            }
        }
        Ok(self.carried)
    }

    async fn open(&self, lent: &Lent) -> Done<()> {
        let opens = &self.opens;
        let id: Vec<i64> = opens.iter().map(|o| o.id.0).collect();
        let identity: Vec<Vec<u8>> = opens
            .iter()
            .map(|Open { wait: w, .. }| {
                hashes::identity(&w.tenant, &w.thread_id, &w.question_id).to_vec()
            })
            .collect();
        let generation: Vec<i32> = opens.iter().map(|o| int(o.wait.generation.get())).collect();
        let rest: Vec<Vec<u8>> = opens
            .iter()
            .map(|Open { wait: w, choice, .. }| {
                hashes::key(&w.tenant, &DedupeRest::choice(&w.question_id, *choice)).to_vec()
            })
            .collect();
        let question: Vec<Vec<u8>> = opens
            .iter()
            .map(|o| hashes::question(&o.wait.tenant, &o.wait.question_id).to_vec())
            .collect();
        let run = |w: &NewWait| (*w.run_id != *w.thread_id.as_str()).then(|| w.run_id.clone());
        let run_hash: Vec<Option<Vec<u8>>> = opens
            .iter()
            .map(|o| run(&o.wait).map(|run| hashes::run(&o.wait.tenant, &run).to_vec()))
            .collect();
        let run_id: Vec<Option<String>> =
            opens.iter().map(|o| run(&o.wait).map(|run| rows::text(&run))).collect();
        let choice: Vec<i32> = opens.iter().map(|o| int(o.choice)).collect();
        let state: Vec<i16> = opens.iter().map(|o| state(o.wait.state)).collect();
        let bytes: Vec<i32> = opens
            .iter()
            .map(|o| i32::try_from(o.wait.envelope.len()).unwrap_or(i32::MAX))
            .collect();
        let created: Vec<i64> = opens.iter().map(|o| o.wait.created_at.millis()).collect();
        let expires: Vec<Option<i64>> =
            opens.iter().map(|o| o.wait.expires_at.map(Time::millis)).collect();
        let closed: Vec<Option<i64>> =
            opens.iter().map(|o| o.wait.closed_at.map(Time::millis)).collect();
        let answers = Answers::of(opens.iter().map(|o| o.wait.answer.as_ref()));
        let tenant: Vec<&str> = opens.iter().map(|o| o.wait.tenant.as_str()).collect();
        let thread: Vec<&str> = opens.iter().map(|o| o.wait.thread_id.as_str()).collect();
        let question_id: Vec<&str> = opens.iter().map(|o| o.wait.question_id.as_str()).collect();
        let event_id: Vec<&str> = opens.iter().map(|o| o.wait.event_id.as_str()).collect();
        let note: Vec<Option<String>> =
            opens.iter().map(|o| o.wait.note.as_deref().map(rows::text)).collect();
        let envelope: Vec<&[u8]> = opens.iter().map(|o| &o.wait.envelope[..]).collect();
        lent.query(
            "INSERT INTO waits (id, identity, generation, rest_hash, question_hash, run_hash, \
             choice, state, bytes, created_at, expires_at, closed_at, valid_until, answered_at, \
             answered_by, answered_via, answer, tenant, thread_id, question_id, run_id, event_id, \
             note, envelope) \
             SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[], $3::INTEGER[], $4::BYTEA[], \
             $5::BYTEA[], $6::BYTEA[], $7::INTEGER[], $8::SMALLINT[], $9::INTEGER[], \
             $10::BIGINT[], $11::BIGINT[], $12::BIGINT[], $13::BIGINT[], $14::BIGINT[], \
             $15::BYTEA[], $16::TEXT[], $17::BYTEA[], $18::TEXT[], $19::TEXT[], $20::TEXT[], \
             $21::TEXT[], $22::TEXT[], $23::TEXT[], $24::BYTEA[])",
            &[
                (&id, Type::INT8_ARRAY),
                (&identity, Type::BYTEA_ARRAY),
                (&generation, Type::INT4_ARRAY),
                (&rest, Type::BYTEA_ARRAY),
                (&question, Type::BYTEA_ARRAY),
                (&run_hash, Type::BYTEA_ARRAY),
                (&choice, Type::INT4_ARRAY),
                (&state, Type::INT2_ARRAY),
                (&bytes, Type::INT4_ARRAY),
                (&created, Type::INT8_ARRAY),
                (&expires, Type::INT8_ARRAY),
                (&closed, Type::INT8_ARRAY),
                (&answers.valid_until, Type::INT8_ARRAY),
                (&answers.at, Type::INT8_ARRAY),
                (&answers.by, Type::BYTEA_ARRAY),
                (&answers.via, Type::TEXT_ARRAY),
                (&answers.value, Type::BYTEA_ARRAY),
                (&tenant, Type::TEXT_ARRAY),
                (&thread, Type::TEXT_ARRAY),
                (&question_id, Type::TEXT_ARRAY),
                (&run_id, Type::TEXT_ARRAY),
                (&event_id, Type::TEXT_ARRAY),
                (&note, Type::TEXT_ARRAY),
                (&envelope, Type::BYTEA_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }

    async fn close(&self, lent: &Lent) -> Done<()> {
        let closes = &self.closes;
        let id: Vec<i64> = closes.iter().map(|c| c.wait.0).collect();
        let state: Vec<i16> = closes.iter().map(|c| state(c.state)).collect();
        let at: Vec<i64> = closes.iter().map(|c| c.at.millis()).collect();
        let answers = Answers::of(closes.iter().map(|c| c.answer.as_ref()));
        let note: Vec<Option<String>> =
            closes.iter().map(|c| c.note.as_deref().map(rows::text)).collect();
        lent.query(
            "UPDATE waits w SET state = c.state, closed_at = c.at, valid_until = c.valid_until, \
             answered_at = c.answered_at, answered_by = c.answered_by, \
             answered_via = c.answered_via, answer = c.answer, note = coalesce(c.note, w.note) \
             FROM unnest($1::BIGINT[], $2::SMALLINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[], \
             $6::BYTEA[], $7::TEXT[], $8::BYTEA[], $9::TEXT[]) \
             AS c (id, state, at, valid_until, answered_at, answered_by, answered_via, answer, \
             note) WHERE w.id = c.id",
            &[
                (&id, Type::INT8_ARRAY),
                (&state, Type::INT2_ARRAY),
                (&at, Type::INT8_ARRAY),
                (&answers.valid_until, Type::INT8_ARRAY),
                (&answers.at, Type::INT8_ARRAY),
                (&answers.by, Type::BYTEA_ARRAY),
                (&answers.via, Type::TEXT_ARRAY),
                (&answers.value, Type::BYTEA_ARRAY),
                (&note, Type::TEXT_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }

    async fn take_over(&self, lent: &Lent) -> Done<()> {
        let id: Vec<i64> = self.taken_over.iter().map(|(wait, ..)| wait.0).collect();
        let envelope: Vec<&[u8]> = self.taken_over.iter().map(|(_, text, _)| &text[..]).collect();
        let bytes: Vec<i32> = self.taken_over.iter().map(|(.., bytes)| *bytes).collect();
        lent.query(
            "UPDATE waits w SET taken_over = t.envelope, bytes = t.bytes \
             FROM unnest($1::BIGINT[], $2::BYTEA[], $3::INTEGER[]) AS t (id, envelope, bytes) \
             WHERE w.id = t.id",
            &[(&id, Type::INT8_ARRAY), (&envelope, Type::BYTEA_ARRAY), (&bytes, Type::INT4_ARRAY)],
        )
        .await?;
        Ok(())
    }

    async fn remember(&self, lent: &Lent) -> Done<()> {
        let wait: Vec<i64> = self.remembered.iter().map(|(wait, _)| wait.0).collect();
        let hash: Vec<&[u8]> = self.remembered.iter().map(|(_, hash)| &hash[..]).collect();
        lent.query(
            "INSERT INTO publishes (wait, event_hash) \
             SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[]) ON CONFLICT DO NOTHING",
            &[(&wait, Type::INT8_ARRAY), (&hash, Type::BYTEA_ARRAY)],
        )
        .await?;
        Ok(())
    }

    async fn resend(&self, lent: &Lent) -> Done<()> {
        let id: Vec<i64> = self.resent.iter().map(|(wait, _)| wait.0).collect();
        let count: Vec<i32> = self.resent.iter().map(|(_, count)| *count).collect();
        lent.query(
            "UPDATE waits w SET resends = r.resends \
             FROM unnest($1::BIGINT[], $2::INTEGER[]) AS r (id, resends) WHERE w.id = r.id",
            &[(&id, Type::INT8_ARRAY), (&count, Type::INT4_ARRAY)],
        )
        .await?;
        Ok(())
    }

    /// The commit's number is drawn here, after every lock was got: what follows from this commit
    /// has a higher one.
    async fn record(&self, lent: &Lent) -> Done<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let records = &self.records;
        let count = i32::try_from(records.len()).unwrap_or(i32::MAX);
        let nth: Vec<i32> = (0..count).collect();
        let wait: Vec<i64> = records.iter().map(|r| r.wait.0).collect();
        let at: Vec<i64> = records.iter().map(|r| r.at.millis()).collect();
        let event: Vec<i16> = records.iter().map(|r| line::event(r.event)).collect();
        let event_id: Vec<Option<&str>> =
            records.iter().map(|r| r.event_id.as_ref().map(EventId::as_str)).collect();
        lent.query(
            "WITH fresh AS (INSERT INTO commits (events) VALUES ($1) RETURNING id) \
             INSERT INTO events (commit_id, nth, wait, at, event, event_id) \
             SELECT fresh.id, r.nth, r.wait, r.at, r.event, r.event_id FROM fresh, \
             unnest($2::INTEGER[], $3::BIGINT[], $4::BIGINT[], $5::SMALLINT[], $6::TEXT[]) \
             AS r (nth, wait, at, event, event_id)",
            &[
                (&count, Type::INT4),
                (&nth, Type::INT4_ARRAY),
                (&wait, Type::INT8_ARRAY),
                (&at, Type::INT8_ARRAY),
                (&event, Type::INT2_ARRAY),
                (&event_id, Type::TEXT_ARRAY),
            ],
        )
        .await?;
        Ok(())
    }
}

/// Lets those behind what was withdrawn move up; gives where they go.
async fn move_up(lent: &Lent, closed: &[i64], now: Time) -> Done<Vec<DestinationId>> {
    let promoted = line::promote(lent, Lines::Waits, closed, now).await?;
    Ok(promoted.iter().map(|p| p.destination).collect())
}

fn none(done: Done<()>) -> Done<Vec<DestinationId>> {
    done.map(|()| Vec::new())
}

fn int(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// What stands in `waits.state`.
pub(super) fn state(state: WaitState) -> i16 {
    i16::try_from(wait_code(state)).unwrap_or(i16::MAX)
}

/// Withdraws the queued messages that end with their waits.
async fn withdraw(lent: &Lent, waits: &[i64], now: Time) -> Done<()> {
    let ending: Vec<i16> =
        Event::ALL.into_iter().filter(|e| e.ends_with_the_wait()).map(line::event).collect();
    let now = now.millis();
    let params: [Param<'_>; 3] =
        [(&waits, Type::INT8_ARRAY), (&ending, Type::INT2_ARRAY), (&now, Type::INT8)];
    let lock = lent.query(
        "SELECT id FROM outbox WHERE id = ANY(ARRAY(SELECT o.id FROM unnest($1::BIGINT[]) \
           AS k (wait) CROSS JOIN LATERAL (SELECT o.id FROM outbox o \
             WHERE o.wait = k.wait AND o.state <= 1 AND o.event = ANY($2) OFFSET 0) o)) \
         ORDER BY id FOR UPDATE",
        &params[..2],
    );
    let withdraw = lent.query(
        "UPDATE outbox SET state = 4, finished_at = $3 \
         WHERE id = ANY(ARRAY(SELECT o.id FROM unnest($1::BIGINT[]) AS k (wait) \
           CROSS JOIN LATERAL (SELECT o.id FROM outbox o \
             WHERE o.wait = k.wait AND o.state <= 1 AND o.event = ANY($2) OFFSET 0) o)) \
         AND state <= 1",
        &params,
    );
    futures::future::try_join(lock, withdraw).await?;
    Ok(())
}

/// The columns of answers.
struct Answers<'a> {
    valid_until: Vec<Option<i64>>,
    at: Vec<Option<i64>>,
    by: Vec<Option<&'a [u8]>>,
    via: Vec<Option<&'a str>>,
    value: Vec<Option<&'a [u8]>>,
}

impl<'a> Answers<'a> {
    fn of(answers: impl Iterator<Item = Option<&'a GivenAnswer>> + Clone) -> Self {
        Self {
            valid_until: answers
                .clone()
                .map(|a| a.and_then(|a| a.valid_until).map(Time::millis))
                .collect(),
            at: answers.clone().map(|a| a.map(|a| a.answered_at.millis())).collect(),
            by: answers
                .clone()
                .map(|a| a.and_then(|a| Some(a.answered_by.as_deref()?.as_bytes())))
                .collect(),
            via: answers.clone().map(|a| a.map(|a| a.answered_via.name())).collect(),
            value: answers.map(|a| a.map(|a| &a.value[..])).collect(),
        }
    }
}
