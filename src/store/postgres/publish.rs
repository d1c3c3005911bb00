//! Questions come in: look at what is known of them, ask the core, write what it says.

use super::batch::Work;
use super::carry::{Carried, Decided, Ids, Writes, most_messages};
use super::connect::{Lent, Param};
use super::fail::{Done, Fail};
use super::hashes::{self, Hash, Identity};
use super::rows::{self, wait_columns};
use super::shared::Shared;
use crate::store::destinations::DestinationId;
use crate::store::{Published, remembered};
use answerback_contract::{DedupeRest, Event, Generation, QuestionId, TenantId, Time, WaitState};
use answerback_core::{Destination, Op, Publish, PublishOutcome, Wait, WaitId, WaitRef, publish};
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::Type;

/// So many choices of a dedupe key are tried one by one; then it goes on from the highest one given,
/// since a question id that very many threads share would make that long.
const COUNTED: u32 = 8;

/// Takes questions in.
pub(super) struct Publishing;

impl Work for Publishing {
    type Job = (Vec<Publish>, Time);
    type Reply = (Vec<Published>, bool);

    fn bytes((batch, _): &Self::Job) -> usize {
        batch.iter().map(|p| p.envelope.text().len()).sum()
    }

    async fn carry_out(shared: &Shared, lent: &Lent, jobs: &[Self::Job]) -> Done<Vec<Self::Reply>> {
        let asked: Vec<Asked<'_>> = jobs
            .iter()
            .flat_map(|(batch, now)| batch.iter().map(|publish| Asked::new(publish, *now)))
            .collect();
        let mut replies: Vec<Option<Published>> = asked.iter().map(|_| None).collect();
        let mut events = false;
        // A round takes each question once: the next one sees what the one before has written.
        let mut left: Vec<usize> = (0..asked.len()).collect();
        let mut first = true;
        while !left.is_empty() {
            let (round, later) = round(&asked, left);
            let questions: Vec<&Asked<'_>> = round.iter().map(|n| &asked[*n]).collect();
            let (published, told) =
                carry_out_round(shared, lent, &questions, first, later.is_empty()).await?;
            events |= told;
            for (n, published) in round.into_iter().zip(published) {
                replies[n] = Some(published);
            }
            left = later;
            first = false;
        }
        let mut replies = replies.into_iter().flatten();
        Ok(jobs
            .iter()
            .map(|(batch, _)| (replies.by_ref().take(batch.len()).collect(), events))
            .collect())
    }
}

/// Splits off what can be carried out together: each question once, and nothing before what it may
/// depend on, which is what is of the same thread or has the same question id.
fn round(asked: &[Asked<'_>], left: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    let mut met = HashSet::new();
    let (mut threads, mut questions) = (HashSet::new(), HashSet::new());
    left.into_iter().partition(|n| {
        let question = &asked[*n];
        let thread = &question.identity[..8];
        let now = !threads.contains(thread)
            && !questions.contains(&question.question_hash)
            && met.insert(question.identity);
        if !now {
            threads.insert(thread.to_vec());
            questions.insert(question.question_hash);
        }
        now
    })
}

/// A question and what stands for it in indices.
struct Asked<'p> {
    publish: &'p Publish,
    now: Time,
    identity: Identity,
    event: Hash,
    first_rest: Hash,
    question_hash: Hash,
}

impl<'p> Asked<'p> {
    fn new(publish: &'p Publish, now: Time) -> Self {
        let (tenant, envelope) = (&publish.tenant, &publish.envelope);
        let (thread, question) = (envelope.thread_id(), envelope.question_id());
        Self {
            publish,
            now,
            identity: hashes::identity(tenant, thread, question),
            event: hashes::event(tenant, thread, question, publish.event_id.as_str()),
            first_rest: hashes::key(tenant, &DedupeRest::choice(question, 1)),
            question_hash: hashes::question(tenant, question),
        }
    }

    fn tenant(&self) -> &TenantId {
        &self.publish.tenant
    }

    fn question(&self) -> &QuestionId {
        self.publish.envelope.question_id()
    }

    /// What stands for the question among what is remembered of forgotten ones.
    fn remembered(&self) -> Hash {
        let mut hash = [0; 16];
        hash.copy_from_slice(&self.identity[8..]);
        hash
    }
}

/// What is known before anything is decided.
struct Known {
    newest: HashMap<Identity, Wait>,
    /// Positions of those whose publish was seen before.
    seen: HashSet<usize>,
    /// Deliveries that wait to be sent.
    waiting: HashMap<WaitId, Vec<(DestinationId, Time)>>,
    forgotten: HashMap<Hash, (Generation, u32)>,
    taken: HashSet<Hash>,
    wait_ids: Ids,
    message_ids: Ids,
}

async fn carry_out_round(
    shared: &Shared,
    lent: &Lent,
    asked: &[&Asked<'_>],
    begin: bool,
    commit: bool,
) -> Done<(Vec<Published>, bool)> {
    let mut known = look(shared, lent, asked, begin).await?;
    let mut decided = Vec::with_capacity(asked.len());
    for (n, question) in asked.iter().enumerate() {
        let mut newest = known.newest.remove(&question.identity);
        if newest.is_none()
            && let Some((generation, choice)) = known.forgotten.get(&question.remembered())
        {
            newest = Some(remembered::wait(question.publish, *generation, *choice, question.now));
        }
        let seen = newest.is_some()
            && (known.seen.contains(&n) || known.forgotten.contains_key(&question.event));
        let waiting = match &newest {
            Some(wait) if !seen && wait.answer.is_some() => {
                let free = known.waiting.get(&wait.id).map(Vec::as_slice).unwrap_or_default();
                let free = free.iter().filter(|(_, out_until)| *out_until <= question.now);
                let ids: Vec<DestinationId> = free.map(|(id, _)| *id).collect();
                let mut waiting = shared.named(&ids).await?;
                waiting.retain(|to| !to.is_announcer());
                waiting
            }
            _ => Vec::new(),
        };
        let (outcome, ops) = publish::decide(
            newest.as_ref(),
            seen,
            &waiting,
            question.publish,
            &shared.rules,
            question.now,
            &mut || shared.mint(),
        )?;
        decided.push((outcome, ops, newest));
    }
    let sends = decided.iter().flat_map(|(_, ops, _)| ops).filter_map(|op| match op {
        Op::Send { send, .. } => Some(&send.destination),
        _ => None,
    });
    shared.intern(sends).await?;
    let choices = choose(lent, asked, &decided, &known).await?;
    let mut writes = Writes::default();
    let mut replies = Vec::with_capacity(asked.len());
    for ((question, (outcome, ops, newest)), choice) in asked.iter().zip(&decided).zip(choices) {
        let fresh = match choice {
            Some(choice) => Some((WaitId(known.wait_ids.next()?), choice)),
            None => None,
        };
        let what = Decided { wait: newest.as_ref(), ops, fresh };
        writes.add(shared, &mut known.message_ids, &what)?;
        replies.push(reply(question, *outcome, ops, newest.as_ref(), choice));
    }
    let events = writes.has_events();
    let now = asked.iter().map(|a| a.now).max().unwrap_or(Time::from_millis(0));
    let carried = writes.write(lent, now, commit).await?;
    for (reply, Carried { queued, lapses_at, .. }) in replies.iter_mut().zip(carried) {
        reply.queued = shared.named(&queued).await?;
        reply.lapses_at = lapses_at;
    }
    Ok((replies, events))
}

fn reply(
    asked: &Asked<'_>,
    outcome: PublishOutcome,
    ops: &[Op],
    newest: Option<&Wait>,
    choice: Option<u32>,
) -> Published {
    let envelope = &asked.publish.envelope;
    let rest = match (choice, newest) {
        (Some(choice), _) => DedupeRest::choice(asked.question(), choice),
        (None, Some(wait)) => wait.rest.clone(),
        (None, None) => DedupeRest::choice(asked.question(), 1),
    };
    let opened_open =
        ops.iter().any(|op| matches!(op, Op::Open(wait) if wait.state == WaitState::Open));
    let announces = |op: &Op| {
        matches!(op, Op::Send { wait: WaitRef::Opened, send }
            if send.event == Event::Created && matches!(send.destination, Destination::Announcer(_)))
    };
    Published {
        outcome,
        rest,
        queued: Vec::new(),
        expires_at: choice.and_then(|_| envelope.expires_at()),
        lapses_at: None,
        closed: ops.iter().find_map(|op| match op {
            Op::Close { wait, .. } => Some(*wait),
            _ => None,
        }),
        unmatched: opened_open && !ops.iter().any(announces),
    }
}

/// Locks what there is of the questions, and reads what deciding needs: in one round trip. Each key is
/// looked up by itself (`LATERAL … LIMIT` or `OFFSET 0`): of a table that was not analysed yet the
/// planner takes a few dozen keys for a third of all rows, and would rather read it whole.
async fn look(shared: &Shared, lent: &Lent, asked: &[&Asked<'_>], begin: bool) -> Done<Known> {
    let identities: Vec<&[u8]> = asked.iter().map(|a| &a.identity[..]).collect();
    let events: Vec<&[u8]> = asked.iter().map(|a| &a.event[..]).collect();
    let rests: Vec<&[u8]> = asked.iter().map(|a| &a.first_rest[..]).collect();
    let remembered: Vec<Hash> = asked.iter().map(|a| a.remembered()).collect();
    let mut memories: Vec<&[u8]> = remembered.iter().map(|hash| &hash[..]).collect();
    memories.extend(&events);
    memories.extend(&rests);
    let messages = asked.len() * most_messages(shared);
    let opening = async { if begin { lent.begin().await } else { Ok(()) } };
    // Every generation is locked: so whoever changes any of them, or adds one, is waited for.
    let locked_params: [Param<'_>; 1] = [(&identities, Type::BYTEA_ARRAY)];
    let locked = lent.query(
        "SELECT id FROM waits WHERE id = ANY(ARRAY(SELECT w.id FROM unnest($1::BYTEA[]) \
           AS k (identity) CROSS JOIN LATERAL (SELECT w.id FROM waits w \
             WHERE w.identity = k.identity OFFSET 0) w)) ORDER BY id FOR UPDATE",
        &locked_params,
    );
    let newest = lent.query(
        concat!(
            "SELECT ",
            wait_columns!(),
            ", w.identity FROM unnest($1::BYTEA[]) AS k (identity) CROSS JOIN LATERAL \
             (SELECT * FROM waits w WHERE w.identity = k.identity \
              ORDER BY w.generation DESC LIMIT 1) w"
        ),
        &locked_params,
    );
    let memory_params: [Param<'_>; 1] = [(&memories, Type::BYTEA_ARRAY)];
    let forgotten = lent.query(
        "SELECT hash, generation, choice FROM forgotten WHERE hash = ANY($1)",
        &memory_params,
    );
    let rest_params: [Param<'_>; 1] = [(&rests, Type::BYTEA_ARRAY)];
    let taken = lent.query("SELECT rest_hash FROM waits WHERE rest_hash = ANY($1)", &rest_params);
    let (_, locked, newest, forgotten, taken, (wait_ids, message_ids)) = futures::try_join!(
        opening,
        locked,
        newest,
        forgotten,
        taken,
        Ids::draw(lent, asked.len(), messages),
    )?;
    let locked: HashSet<i64> = locked.iter().map(|row| rows::get(row, 0)).collect::<Done<_>>()?;
    let mut found = HashMap::new();
    for row in &newest {
        let wait = rows::wait(row, 0)?;
        if !locked.contains(&wait.id.0) {
            // A generation was added between the two statements.
            return Err(Fail::Conflict);
        }
        let identity: &[u8] = rows::get(row, rows::WAIT_COLUMNS)?;
        let identity = Identity::try_from(identity)
            .map_err(|_| Fail::Corrupt("an impossible identity".to_owned()))?;
        found.insert(identity, wait);
    }
    let mut known = Known {
        newest: found,
        seen: HashSet::new(),
        waiting: HashMap::new(),
        forgotten: HashMap::new(),
        taken: HashSet::new(),
        wait_ids,
        message_ids,
    };
    for row in &forgotten {
        let what = (rows::generation(row, 1)?, rows::number(row, 2)?);
        known.forgotten.insert(hash(rows::get(row, 0)?)?, what);
    }
    for row in &taken {
        known.taken.insert(hash(rows::get(row, 0)?)?);
    }
    if !known.newest.is_empty() {
        look_back(lent, asked, &mut known).await?;
    }
    Ok(known)
}

/// Reads what matters only where a question was asked before: most were not.
async fn look_back(lent: &Lent, asked: &[&Asked<'_>], known: &mut Known) -> Done<()> {
    let identities: Vec<&[u8]> = asked.iter().map(|a| &a.identity[..]).collect();
    let events: Vec<&[u8]> = asked.iter().map(|a| &a.event[..]).collect();
    let event_ids: Vec<&str> = asked.iter().map(|a| a.publish.event_id.as_str()).collect();
    let locked_params: [Param<'_>; 1] = [(&identities, Type::BYTEA_ARRAY)];
    let seen_params: [Param<'_>; 3] = [
        (&identities, Type::BYTEA_ARRAY),
        (&event_ids, Type::TEXT_ARRAY),
        (&events, Type::BYTEA_ARRAY),
    ];
    let seen = lent.query(
        "SELECT k.n FROM unnest($1::BYTEA[], $2::TEXT[], $3::BYTEA[]) WITH ORDINALITY \
         AS k (identity, event_id, event_hash, n) \
         CROSS JOIN LATERAL (SELECT 1 FROM waits w WHERE w.identity = k.identity \
           AND (w.event_id = k.event_id OR (SELECT count(*) FROM publishes p \
             WHERE p.wait = w.id AND p.event_hash = k.event_hash) > 0) LIMIT 1) w",
        &seen_params,
    );
    let waiting = lent.query(
        "SELECT w.id, o.destination, o.leased_until FROM unnest($1::BYTEA[]) AS k (identity) \
         CROSS JOIN LATERAL (SELECT w.id FROM waits w \
           WHERE w.identity = k.identity AND w.answer IS NOT NULL OFFSET 0) w \
         CROSS JOIN LATERAL (SELECT o.destination, o.leased_until FROM outbox o \
           WHERE o.wait = w.id AND o.state <= 1 OFFSET 0) o",
        &locked_params,
    );
    let (seen, waiting) = futures::try_join!(seen, waiting)?;
    for row in &seen {
        known.seen.insert(usize::try_from(rows::get::<i64>(row, 0)? - 1).unwrap_or(usize::MAX));
    }
    for row in &waiting {
        let to = (DestinationId(rows::get(row, 1)?), rows::time(row, 2)?);
        known.waiting.entry(WaitId(rows::get(row, 0)?)).or_default().push(to);
    }
    Ok(())
}

fn hash(bytes: &[u8]) -> Done<Hash> {
    Hash::try_from(bytes).map_err(|_| Fail::Corrupt("an impossible hash".to_owned()))
}

/// Finds the first free choice of dedupe rest for every wait that is opened: one key, one wait, also
/// among those that were forgotten and those of this very batch.
async fn choose(
    lent: &Lent,
    asked: &[&Asked<'_>],
    decided: &[(PublishOutcome, Vec<Op>, Option<Wait>)],
    known: &Known,
) -> Done<Vec<Option<u32>>> {
    let opens: Vec<bool> =
        decided.iter().map(|(_, ops, _)| ops.iter().any(|op| matches!(op, Op::Open(_)))).collect();
    let mut given: HashSet<Hash> = HashSet::new();
    let mut choices: Vec<Option<u32>> = vec![None; asked.len()];
    let mut contested = Vec::new();
    for (n, question) in asked.iter().enumerate().filter(|(n, _)| opens[*n]) {
        let rest = &question.first_rest;
        let is_free = !known.taken.contains(rest) && !known.forgotten.contains_key(rest);
        if is_free && given.insert(*rest) {
            choices[n] = Some(1);
        } else {
            contested.push(n);
        }
    }
    if contested.is_empty() {
        return Ok(choices);
    }
    let rest = |n: usize, choice: u32| {
        hashes::key(asked[n].tenant(), &DedupeRest::choice(asked[n].question(), choice))
    };
    let mut highest = highest_of(lent, asked, &contested).await?;
    let beyond = |highest: &HashMap<Hash, u32>, n: usize| {
        let top = highest.get(&asked[n].question_hash).copied().unwrap_or(0);
        COUNTED.max(top.saturating_add(1))
    };
    // What the contested ones of a question will ask for, all in one go.
    let mut of_question: HashMap<Hash, u32> = HashMap::new();
    for n in &contested {
        *of_question.entry(asked[*n].question_hash).or_default() += 1;
    }
    let mut candidates = Vec::new();
    for n in &contested {
        let Some(count) = of_question.remove(&asked[*n].question_hash) else { continue };
        let beyond = beyond(&highest, *n);
        let counted = (2..COUNTED).chain(beyond..beyond.saturating_add(count));
        candidates.extend(counted.map(|choice| rest(*n, choice)));
    }
    let mut looked_at: HashSet<Hash> = candidates.iter().copied().collect();
    let mut taken = taken_of(lent, &candidates).await?;
    for n in contested {
        let mut choice = 2;
        loop {
            if choice == COUNTED {
                choice = beyond(&highest, n);
            }
            let candidate = rest(n, choice);
            if looked_at.insert(candidate) {
                taken.extend(taken_of(lent, &[candidate]).await?);
            }
            if !taken.contains(&candidate) && given.insert(candidate) {
                break;
            }
            choice = choice.saturating_add(1);
        }
        let top = highest.entry(asked[n].question_hash).or_default();
        *top = (*top).max(choice);
        choices[n] = Some(choice);
    }
    Ok(choices)
}

/// Which of these dedupe keys are given already.
async fn taken_of(lent: &Lent, rests: &[Hash]) -> Done<HashSet<Hash>> {
    let asked: Vec<&[u8]> = rests.iter().map(|hash| &hash[..]).collect();
    let found = lent
        .query(
            "SELECT rest_hash FROM waits WHERE rest_hash = ANY($1) \
             UNION ALL SELECT hash FROM forgotten WHERE hash = ANY($1)",
            &[(&asked, Type::BYTEA_ARRAY)],
        )
        .await?;
    found.iter().map(|row| hash(rows::get(row, 0)?)).collect()
}

/// The highest choice that was given for a question id.
async fn highest_of(
    lent: &Lent,
    asked: &[&Asked<'_>],
    which: &[usize],
) -> Done<HashMap<Hash, u32>> {
    let mut questions: Vec<Vec<u8>> =
        which.iter().map(|n| asked[*n].question_hash.to_vec()).collect();
    questions.sort_unstable();
    questions.dedup();
    let found = lent
        .query(
            "SELECT k.hash, (SELECT w.choice FROM waits w WHERE w.question_hash = k.hash \
             ORDER BY w.choice DESC LIMIT 1) FROM unnest($1::BYTEA[]) AS k (hash)",
            &[(&questions, Type::BYTEA_ARRAY)],
        )
        .await?;
    let mut highest = HashMap::new();
    for row in &found {
        let choice: Option<i32> = rows::get(row, 1)?;
        let choice = choice.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        highest.insert(hash(rows::get(row, 0)?)?, choice);
    }
    Ok(highest)
}
