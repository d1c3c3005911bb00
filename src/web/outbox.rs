//! Announcements and deliveries: listed, and sent again.

use super::front::{App, Call};
use super::problem::Problem;
use super::query::number;
use super::reply::Reply;
use super::view;
use crate::store::{Listed, OutboxFilter, Retried, Retry};
use answerback_core::{Destination, Name, OutboxId, OutboxState};
use http::StatusCode;

const STATES: &str = "queued, delivered, dead, withdrawn";

pub(crate) async fn list(app: &App, call: Call, announcements: bool) -> Result<Reply, Problem> {
    let query = &call.query;
    let states = query.states(OutboxState::from_name, STATES)?;
    if states.len() > 1 {
        return Err(Problem::bad_input(
            "state",
            "stands for one state here; ask for one at a time",
        ));
    }
    let limit = query.limit()?;
    let (plural, label) =
        if announcements { ("announcements", "announcer") } else { ("deliveries", "route") };
    let filter = OutboxFilter {
        tenant: call.caller.tenant.clone(),
        announcements,
        state: states.first().copied(),
        label: query.get(label).map(str::to_owned),
        wait: None,
        before: query.cursor()?.map(OutboxId),
        limit: limit + 1,
    };
    let Listed { found: rows, next } = app.state.store.list_outbox(filter).await?;
    let shown = &rows[..rows.len().min(limit)];
    let mut out = format!("{{\"{plural}\":[");
    for (at, row) in shown.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        view::outbox_item(&mut out, row);
    }
    // One more than is shown tells whether there are more. With less, the list is at its end; or
    // the store has looked at much and found little, and goes on when asked.
    let next = if rows.len() > limit { shown.last().map(|row| row.id) } else { next };
    out.push_str(&view::end_of_list(next.map(|id| id.0)));
    Ok(Reply::ok(out))
}

pub(crate) async fn retry_announcement(app: &App, call: Call) -> Result<Reply, Problem> {
    let id = known(app, &call, true).await?;
    retry(app, call, Retry::Announcement(id)).await
}

pub(crate) async fn retry_delivery(app: &App, call: Call) -> Result<Reply, Problem> {
    let id = known(app, &call, false).await?;
    retry(app, call, Retry::Delivery(id)).await
}

pub(crate) async fn retry_announcer(app: &App, call: Call) -> Result<Reply, Problem> {
    let name = Name::new(&call.id);
    let rules = &app.state.rules;
    if !rules.announcers.iter().any(|a| a.name == name && a.tenant == call.caller.tenant) {
        return Err(Problem::not_found("there is no announcer of this name in the configuration"));
    }
    retry(app, call, Retry::Announcer(name)).await
}

async fn retry(app: &App, call: Call, what: Retry) -> Result<Reply, Problem> {
    match app.state.intake.retry(call.caller.tenant, what).await? {
        Retried::Queued(count, _) => {
            Ok(Reply::json(StatusCode::ACCEPTED, format!("{{\"retried\":{count}}}")))
        }
        Retried::NotRetryable(state) => Err(Problem::not_retryable(
            "only what is dead can be sent again: an announcement of a question only while it is open, a delivery only while its answer is valid",
            state.name(),
        )),
        Retried::NotFound => Err(nothing()),
    }
}

/// The message's number, once it is sure that somebody will send it: the work of an announcer that
/// is gone from the configuration can be sent again once it is back (contract, section 4).
async fn known(app: &App, call: &Call, announcements: bool) -> Result<OutboxId, Problem> {
    let id = number(&call.id).ok_or_else(nothing)?;
    let filter = OutboxFilter {
        tenant: call.caller.tenant.clone(),
        announcements,
        state: None,
        label: None,
        wait: None,
        before: Some(OutboxId(id.saturating_add(1))),
        limit: 1,
    };
    let rows = app.state.store.list_outbox(filter).await?.found;
    let row = rows.first().filter(|row| row.id.0 == id).ok_or_else(nothing)?;
    let rules = &app.state.rules;
    let present = match &row.destination {
        Destination::Announcer(name) => rules.announcers.iter().any(|a| a.name == *name),
        Destination::Route(name) => rules.routes.iter().any(|r| r.name == *name),
        Destination::ReplyTo(_) | Destination::Pull => true,
    };
    if !present {
        return Err(Problem::not_retryable(
            "its announcer or route is not in the configuration; send it again once that is back",
            row.state.name(),
        ));
    }
    Ok(row.id)
}

fn nothing() -> Problem {
    Problem::not_found("there is nothing with this id")
}
