//! Waits: asked, looked at, answered, come for, withdrawn.

use super::front::{App, Call};
use super::problem::Problem;
use super::query::number;
use super::reply::Reply;
use super::view;
use crate::intake::IntakeError;
use crate::metrics::DELIVERIES;
use crate::store::{Found, Listed, OutboxFilter, OutboxRow, WaitFilter, WaitQuery};
use answerback_contract::{Generation, QuestionId, ThreadId, Via, WaitState};
use answerback_core::{
    AnswerOutcome, CancelOutcome, Destination, Name, OutboxState, Wait, WaitId, message,
};
use http::StatusCode;
use metrics::counter;
use std::sync::Arc;
use tokio::time::timeout;

/// A list's page ends when it has so many bytes, and goes on at its cursor: envelopes can be large.
const PAGE_BYTES: usize = 4 << 20;
/// A list is read from the store in steps of so many waits, to hold no more envelopes than needed.
const STEP: usize = 50;
/// The most messages that one wait is shown with.
const MOST_ROWS: usize = 500;
const STATES: &str = "pending, open, completed, timed-out, cancelled, unused";

impl From<IntakeError> for Problem {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Refused(refusal) => refusal.into(),
            IntakeError::Store(error) => error.into(),
        }
    }
}

pub(crate) async fn publish(app: &App, call: Call) -> Result<Reply, Problem> {
    let taken = app.state.intake.publish(&call.caller.tenant, call.body).await;
    let accepted = counted(app, taken)?;
    let (status, count) = if accepted.duplicate {
        (StatusCode::OK, &app.counted.duplicate)
    } else {
        (StatusCode::ACCEPTED, &app.counted.accepted)
    };
    count.increment(1);
    Ok(Reply::json(status, view::accepted(&accepted)))
}

pub(crate) async fn answer(app: &App, call: Call) -> Result<Reply, Problem> {
    let Call { caller, body, .. } = &call;
    let taken =
        app.state.intake.answer(&caller.tenant, caller.key.as_deref(), Via::Api, body).await;
    let outcome = counted(app, taken)?;
    let count = match outcome {
        AnswerOutcome::Accepted => &app.counted.accepted,
        AnswerOutcome::AcceptedAgain => &app.counted.duplicate,
        _ => &app.counted.refused,
    };
    count.increment(1);
    match outcome {
        AnswerOutcome::Accepted | AnswerOutcome::AcceptedAgain => {
            Ok(Reply::ok("{\"status\":\"accepted\"}"))
        }
        AnswerOutcome::NotFound => Err(Problem::wait_not_found()),
        AnswerOutcome::Closed { state, generation } => {
            Err(Problem::wait_closed(state, generation.get()))
        }
        AnswerOutcome::Expired => Err(Problem::answer_expired()),
        AnswerOutcome::ActionNotAllowed => Err(Problem::action_not_allowed()),
    }
}

/// Counts what was not taken.
fn counted<T>(app: &App, taken: Result<T, IntakeError>) -> Result<T, Problem> {
    taken.map_err(|error| {
        match error {
            IntakeError::Refused(_) => app.counted.refused.increment(1),
            IntakeError::Store(_) => app.counted.failed.increment(1),
        }
        error.into()
    })
}

pub(crate) async fn list(app: &App, call: Call) -> Result<Reply, Problem> {
    let query = &call.query;
    let limit = query.limit()?;
    let mut filter = WaitFilter {
        tenant: call.caller.tenant.clone(),
        states: query.states(WaitState::from_name, STATES)?,
        thread_id: thread_id(&call)?,
        run_id: query.get("run_id").map(str::to_owned),
        tags: query.tags(),
        announcer: query.get("announcer").map(Name::new),
        before: query.cursor()?.map(WaitId),
        limit: 0,
    };
    let mut out = "{\"waits\":[".to_owned();
    let mut shown = 0;
    let next = loop {
        // One more than is shown tells whether there are more.
        filter.limit = (limit - shown).min(STEP) + 1;
        let Listed { found: waits, next } = app.state.store.list_waits(filter.clone()).await?;
        let room = filter.limit - 1;
        let before = shown;
        for wait in waits.iter().take(room) {
            if shown > 0 {
                out.push(',');
            }
            view::list_item(&mut out, wait)?;
            shown += 1;
            filter.before = Some(wait.id);
            if out.len() >= PAGE_BYTES {
                break;
            }
        }
        if shown - before == waits.len() {
            // The end; or the store has looked at much and found little, and goes on when asked.
            break next;
        }
        if shown == limit || out.len() >= PAGE_BYTES {
            break filter.before;
        }
    };
    out.push_str(&view::end_of_list(next.map(|id| id.0)));
    Ok(Reply::ok(out))
}

pub(crate) async fn get(app: &App, call: Call) -> Result<Reply, Problem> {
    let wait = find(app, &call).await?;
    let mut rows = rows(app, &wait, true).await?;
    rows.extend(self::rows(app, &wait, false).await?);
    Ok(Reply::ok(view::wait(&wait, &rows)?))
}

pub(crate) async fn cancel(app: &App, call: Call) -> Result<Reply, Problem> {
    let wait = find(app, &call).await?;
    match app.state.intake.cancel(wait.id).await? {
        None => Err(no_wait()),
        Some(CancelOutcome::Cancelled) => Ok(Reply::ok("{\"status\":\"cancelled\"}")),
        Some(CancelOutcome::Closed(state)) => {
            Err(Problem::wait_closed(state, wait.generation.get()))
        }
    }
}

pub(crate) async fn delete_answer(app: &App, call: Call) -> Result<Reply, Problem> {
    let wait = find(app, &call).await?;
    let kept = rows(app, &wait, false).await?;
    // Told twice, or of an answer that went another way: the host has it all the same.
    app.state.store.pulled(wait.id, app.state.clock.now()).await?;
    if kept.iter().any(is_kept) {
        counter!(DELIVERIES, "route" => Destination::Pull.label(), "outcome" => "delivered")
            .increment(1);
    }
    Ok(Reply::no_content())
}

pub(crate) async fn get_answer(app: &App, call: Call) -> Result<Reply, Problem> {
    let most = call.query.wait()?;
    if let Some(reply) = look(app, &*find(app, &call).await?).await? {
        return Ok(reply);
    }
    if most.is_zero() {
        return Ok(Reply::no_content());
    }
    // Without an answer in time there is none yet.
    timeout(most, poll(app, &call)).await.unwrap_or_else(|_| Ok(Reply::no_content()))
}

/// Waits for the end of the wait, or of the daemon. A wait that was superseded meanwhile is left for
/// the one that the query means now.
async fn poll(app: &App, call: &Call) -> Result<Reply, Problem> {
    let mut meant = find(app, call).await?.id;
    loop {
        let mut watch = app.state.intake.watchers().watch(meant);
        // Only what is looked at after the watch began cannot be missed.
        let wait = find(app, call).await?;
        if wait.id != meant {
            meant = wait.id;
            continue;
        }
        if let Some(reply) = look(app, &wait).await? {
            return Ok(reply);
        }
        tokio::select! {
            () = watch.ended() => {}
            () = app.state.drain.cancelled() => return Ok(Reply::no_content()),
        }
    }
}

/// The answer, if it is there; an error if it never will be.
async fn look(app: &App, wait: &Wait) -> Result<Option<Reply>, Problem> {
    if !wait.state.is_over() {
        return Ok(None);
    }
    let gone = |why| Err(Problem::no_answer_left(wait.state, wait.generation.get(), why));
    let Some(given) = &wait.answer else {
        return gone("the wait ended without an answer");
    };
    if let Some(until) = given.valid_until.filter(|_| !given.is_valid(app.state.clock.now())) {
        return Err(Problem::answer_gone(until.to_string()));
    }
    // It is kept until the host says that it has it (contract, section 6, `pull`).
    let rows = rows(app, wait, false).await?;
    let mut pulls = rows.iter().filter(|row| row.destination == Destination::Pull).peekable();
    if pulls.peek().is_some() && !pulls.any(is_kept) {
        return gone("the answer was handed out and its DELETE came, or it is dead");
    }
    Ok(Some(Reply::ok(message::answer(wait, given)?)))
}

/// Whether an answer waits for its host to come.
fn is_kept(row: &OutboxRow) -> bool {
    row.destination == Destination::Pull && row.state == OutboxState::Queued
}

async fn rows(app: &App, wait: &Wait, announcements: bool) -> Result<Vec<OutboxRow>, Problem> {
    let filter = OutboxFilter {
        tenant: wait.tenant.clone(),
        announcements,
        state: None,
        label: None,
        wait: Some(wait.id),
        before: None,
        limit: MOST_ROWS,
    };
    Ok(app.state.store.list_outbox(filter).await?.found)
}

/// The wait that path and query mean.
async fn find(app: &App, call: &Call) -> Result<Arc<Wait>, Problem> {
    match app.state.store.find(meant(call)?).await? {
        Found::One(wait) => Ok(wait),
        Found::None => Err(no_wait()),
        Found::Ambiguous(threads) => {
            Err(Problem::ambiguous_wait(threads.iter().map(ToString::to_string).collect()))
        }
    }
}

fn no_wait() -> Problem {
    Problem::not_found("there is no wait of this question_id, thread_id and generation")
}

/// The id stands in the path; or in the query behind `/v1/waits/-`, for ids that clients mangle.
fn meant(call: &Call) -> Result<WaitQuery, Problem> {
    let question_id = match (call.id.as_str(), call.query.get("question_id")) {
        (id, None) => id,
        ("-", Some(id)) => id,
        (_, Some(_)) => {
            return Err(Problem::bad_input(
                "question_id",
                "stands in the path already; it goes with /v1/waits/- only",
            ));
        }
    };
    let generation = match call.query.get("generation") {
        None => None,
        Some(text) => {
            let generation =
                number(text).and_then(|n| u32::try_from(n).ok()).and_then(Generation::new);
            Some(generation.ok_or_else(|| {
                Problem::bad_input("generation", "must be a whole number from 1 up")
            })?)
        }
    };
    Ok(WaitQuery {
        tenant: call.caller.tenant.clone(),
        question_id: QuestionId::new(question_id)
            .map_err(|bad| Problem::bad_input("question_id", bad.to_string()))?,
        thread_id: thread_id(call)?,
        generation,
    })
}

pub(crate) fn thread_id(call: &Call) -> Result<Option<ThreadId>, Problem> {
    let thread = call.query.get("thread_id").map(ThreadId::new).transpose();
    thread.map_err(|bad| Problem::bad_input("thread_id", bad.to_string()))
}
