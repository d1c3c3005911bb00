//! Answers and withdrawals: lock the wait, ask the core, write what it says.

use super::batch::Work;
use super::carry::{Carried, Decided, Ids, Writes, most_messages};
use super::connect::Lent;
use super::fail::Done;
use super::hashes;
use super::rows::{self, wait_columns};
use super::shared::Shared;
use crate::store::{Answered, Cancelled};
use answerback_contract::Time;
use answerback_core::{AnswerRequest, CancelOutcome, Op, Wait, WaitId, answer, cancel};
use std::collections::HashMap;
use tokio_postgres::types::Type;

/// What [`super::connect::Link::transaction`] gives besides the reply: whether the feed has more.
pub(super) type Told<T> = (T, bool);

/// Takes answers.
pub(super) struct Answering;

impl Work for Answering {
    type Job = (AnswerRequest, Time);
    type Reply = Told<Answered>;

    fn bytes((request, _): &Self::Job) -> usize {
        request.answer.value.len()
    }

    async fn carry_out(shared: &Shared, lent: &Lent, jobs: &[Self::Job]) -> Done<Vec<Self::Reply>> {
        let mut keys: Vec<(Vec<u8>, i32)> = jobs.iter().map(|(request, _)| key(request)).collect();
        keys.sort_unstable();
        keys.dedup();
        let (identities, generations): (Vec<Vec<u8>>, Vec<i32>) = keys.into_iter().unzip();
        let params: [super::connect::Param<'_>; 2] =
            [(&identities, Type::BYTEA_ARRAY), (&generations, Type::INT4_ARRAY)];
        // Locked in the order of their ids, as everywhere.
        let waits = lent.query(
            concat!(
                "SELECT ",
                wait_columns!(),
                ", w.identity FROM waits w WHERE w.id = ANY(ARRAY(SELECT w.id \
                 FROM unnest($1::BYTEA[], $2::INTEGER[]) AS k (identity, generation) \
                 CROSS JOIN LATERAL (SELECT w.id FROM waits w WHERE w.identity = k.identity \
                   AND w.generation = k.generation OFFSET 0) w)) ORDER BY w.id FOR UPDATE"
            ),
            &params,
        );
        let messages = jobs.len() * most_messages(shared);
        let (_, waits, (_, mut ids)) =
            futures::try_join!(lent.begin(), waits, Ids::draw(lent, 0, messages))?;
        let mut known = HashMap::with_capacity(waits.len());
        for row in &waits {
            let identity: &[u8] = rows::get(row, rows::WAIT_COLUMNS)?;
            let wait = rows::wait(row, 0)?;
            let generation = i32::try_from(wait.generation.get()).unwrap_or(i32::MAX);
            known.insert((identity.to_vec(), generation), wait);
        }
        let mut decided = Vec::with_capacity(jobs.len());
        for (request, now) in jobs {
            let wait = known.get_mut(&key(request));
            let (outcome, ops) =
                answer::decide(wait.as_deref(), request, &shared.rules, *now, &mut || {
                    shared.mint()
                })?;
            let before = wait.as_deref().cloned();
            if let Some(wait) = wait {
                // Whoever comes next in this batch sees it.
                end(wait, &ops);
            }
            decided.push((outcome, ops, before));
        }
        let all = decided.iter().map(|(_, ops, wait)| (wait.as_ref(), ops.as_slice()));
        let now = jobs.iter().map(|(_, now)| *now).max().unwrap_or(Time::from_millis(0));
        let (carried, events) = write(shared, lent, &mut ids, all, now).await?;
        let mut replies = Vec::with_capacity(jobs.len());
        for ((outcome, _, wait), carried) in decided.into_iter().zip(carried) {
            let queued = shared.named(&carried.queued).await?;
            let wait = wait.map(|wait| wait.id);
            let lapses_at = carried.lapses_at;
            replies.push((Answered { outcome, wait, queued, lapses_at }, events));
        }
        Ok(replies)
    }
}

fn key(request: &AnswerRequest) -> (Vec<u8>, i32) {
    let told = &request.answer;
    let identity = hashes::identity(&request.tenant, &told.thread_id, &told.question_id);
    (identity.to_vec(), i32::try_from(told.generation.get()).unwrap_or(i32::MAX))
}

/// What the operations make of a wait that is over.
fn end(wait: &mut Wait, ops: &[Op]) {
    for op in ops {
        if let Op::Close { state, at, answer, note, .. } = op {
            wait.state = *state;
            wait.closed_at = Some(*at);
            wait.answer.clone_from(answer);
            if note.is_some() {
                wait.note.clone_from(note);
            }
        }
    }
}

/// Writes what was decided about waits that exist, and commits.
pub(super) async fn write<'d>(
    shared: &Shared,
    lent: &Lent,
    ids: &mut Ids,
    decided: impl Iterator<Item = (Option<&'d Wait>, &'d [Op])> + Clone,
    now: Time,
) -> Done<(Vec<Carried>, bool)> {
    let sends = decided.clone().flat_map(|(_, ops)| ops).filter_map(|op| match op {
        Op::Send { send, .. } => Some(&send.destination),
        _ => None,
    });
    shared.intern(sends).await?;
    let mut writes = Writes::default();
    for (wait, ops) in decided {
        writes.add(shared, ids, &Decided { wait, ops, fresh: None })?;
    }
    let events = writes.has_events();
    Ok((writes.write(lent, now, true).await?, events))
}

/// What was decided about one.
type Withdrawal = (CancelOutcome, Vec<Op>);

/// Withdraws waits.
pub(super) struct Cancelling;

impl Work for Cancelling {
    type Job = (WaitId, Time);
    type Reply = Told<Option<Cancelled>>;

    fn bytes(_: &Self::Job) -> usize {
        0
    }

    async fn carry_out(shared: &Shared, lent: &Lent, jobs: &[Self::Job]) -> Done<Vec<Self::Reply>> {
        let waits: Vec<i64> = jobs.iter().map(|(wait, _)| wait.0).collect();
        let params: [super::connect::Param<'_>; 1] = [(&waits, Type::INT8_ARRAY)];
        let locked = lent.query(
            concat!(
                "SELECT ",
                wait_columns!(),
                " FROM waits w WHERE w.id = ANY($1) ORDER BY w.id FOR UPDATE"
            ),
            &params,
        );
        let messages = jobs.len() * most_messages(shared);
        let (_, locked, (_, mut ids)) =
            futures::try_join!(lent.begin(), locked, Ids::draw(lent, 0, messages))?;
        let mut known = HashMap::with_capacity(locked.len());
        for row in &locked {
            let wait = rows::wait(row, 0)?;
            known.insert(wait.id, wait);
        }
        let mut decided: Vec<(Option<Withdrawal>, Option<Wait>)> = Vec::new();
        for (id, now) in jobs {
            let Some(wait) = known.get_mut(id) else {
                decided.push((None, None));
                continue;
            };
            let (outcome, ops) = cancel(wait, &shared.rules, *now, &mut || shared.mint())?;
            let before = wait.clone();
            end(wait, &ops);
            decided.push((Some((outcome, ops)), Some(before)));
        }
        let all = decided.iter().map(|(done, wait)| {
            (wait.as_ref(), done.as_ref().map(|(_, ops)| ops.as_slice()).unwrap_or_default())
        });
        let now = jobs.iter().map(|(_, now)| *now).max().unwrap_or(Time::from_millis(0));
        let (carried, events) = write(shared, lent, &mut ids, all, now).await?;
        let mut replies = Vec::with_capacity(jobs.len());
        for ((done, _), carried) in decided.into_iter().zip(carried) {
            let queued = shared.named(&carried.queued).await?;
            let cancelled = done.map(|(outcome, _)| Cancelled { outcome, queued });
            replies.push((cancelled, events));
        }
        Ok(replies)
    }
}
