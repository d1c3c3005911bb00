//! `GET /v1/events`: what happens to waits, as server-sent events in the order of commits.
//!
//! A stream holds one page at most: the next one is read when the caller has taken the last, so a
//! slow reader costs no memory, and one who reads no more is let go as an idle connection. Between
//! pages it sleeps until something is committed, here or at another replica.

use super::front::{App, Call};
use super::problem::Problem;
use super::query::number;
use super::waits;
use crate::intake;
use crate::store::{Feed, FeedEvent, FeedRequest, Place, Store};
use answerback_core::{Refusal, message};
use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The most streams at a time.
pub(crate) const MOST: usize = 512;
/// Without events something is sent this often: proxies cut what is silent for longer, and so does
/// the watch over idle connections.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// When a client that lost its stream should come again.
const RETRY: Duration = Duration::from_secs(2);
/// What is read from the store at a time.
const PAGE_EVENTS: usize = 100;
const PAGE_BYTES: usize = 64 << 10;
/// Events gather for so long after a look: one look finds all of them.
const GATHER: Duration = Duration::from_millis(20);
/// All streams together look into the store about a thousand times a second, however many they are.
const SHARE: Duration = Duration::from_millis(1);
/// After a failed call of the store.
const STORE_PAUSE: Duration = Duration::from_secs(1);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Marks a response whose body has no end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream;

/// The room for streams.
#[derive(Debug)]
pub(crate) struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

/// Begins a stream.
pub(crate) async fn stream(
    app: &App,
    call: &Call,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let thread_id = waits::thread_id(call)?;
    let last = last_event_id(headers)?;
    let room = Arc::clone(&app.streams.0);
    let permit = room.clone().try_acquire_owned().map_err(|_| Problem::too_many_streams())?;
    let store = Arc::clone(&app.state.store);
    // What is committed after the end is read wakes the stream.
    let events = app.state.intake.watchers().events();
    let end = store.feed_end().await?;
    // A place past the end is of a store that is gone: its events cannot be told, those that come can.
    let after = last.map_or(end, |last| last.min(end));
    let now = Instant::now();
    let following = Following {
        request: FeedRequest {
            tenant: call.caller.tenant.clone(),
            thread_id,
            after,
            limit: PAGE_EVENTS,
            bytes: PAGE_BYTES,
        },
        store,
        events,
        drain: app.state.drain.clone(),
        room,
        told: None,
        look: true,
        not_before: now,
        beat: now,
        _permit: permit,
    };
    let chunks = futures::stream::unfold(following, |mut following| async {
        let chunk = following.next().await?;
        Some((Ok::<_, Infallible>(chunk), following))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Proxies that gather what they pass on (nginx) are told not to.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.extensions_mut().insert(Stream);
    Ok(response)
}

/// Where a client wants to go on.
fn last_event_id(headers: &HeaderMap) -> Result<Option<Place>, Problem> {
    let mut all = headers.get_all(LAST_EVENT_ID).iter();
    let bad = |what| Problem::bad_input("Last-Event-ID", what);
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(bad("stands twice; send it once")),
        (Some(value), None) => {
            let text = value.to_str().ok().filter(|text| !text.is_empty());
            let place = text.and_then(number).map(Place);
            place.map(Some).ok_or_else(|| {
                bad("must be the id of an event of this stream, or 0 for all that are kept")
            })
        }
    }
}

/// One stream.
struct Following {
    /// Which events; after which place they are to be read next.
    request: FeedRequest,
    store: Arc<dyn Store>,
    events: intake::Events,
    drain: CancellationToken,
    room: Arc<Semaphore>,
    /// The place that the client knows.
    told: Option<Place>,
    /// There may be something to read.
    look: bool,
    /// Nothing is read before.
    not_before: Instant,
    /// When something has to be sent.
    beat: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    /// What to send next; `None` when the daemon stops.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if Instant::now() >= self.beat {
                // Whatever woke nobody is found now.
                self.look = true;
                return Some(self.heartbeat());
            }
            let wake = if self.look { self.not_before.min(self.beat) } else { self.beat };
            tokio::select! {
                biased;
                () = self.drain.cancelled() => return None,
                () = self.events.more(), if !self.look => self.look = true,
                () = sleep_until(wake) => {}
            }
            if self.look && Instant::now() >= self.not_before {
                let chunk = self.read().await;
                if chunk.is_some() {
                    return chunk;
                }
            }
        }
    }

    /// The first and whatever is sent instead of events: how far this stream is, also when nothing
    /// of it was for this client.
    fn heartbeat(&mut self) -> Bytes {
        self.beat = Instant::now() + HEARTBEAT;
        let mut text = String::from(":\n");
        if self.told.is_none() {
            let _ = writeln!(text, "retry: {}", RETRY.as_millis());
        }
        if self.told != Some(self.request.after) {
            self.told = Some(self.request.after);
            let _ = writeln!(text, "id: {}", self.request.after.0);
        }
        text.push('\n');
        Bytes::from(text)
    }

    /// Reads a page; `None` when there was nothing on it.
    async fn read(&mut self) -> Option<Bytes> {
        // The signal of what is read now is used up; what comes meanwhile gives another.
        self.events.seen();
        let feed = self.store.feed(self.request.clone()).await;
        let streams = MOST.saturating_sub(self.room.available_permits());
        let share = SHARE * u32::try_from(streams).unwrap_or(u32::MAX);
        let now = Instant::now();
        let Feed { events, next, more } = match feed {
            Ok(feed) => feed,
            Err(error) => {
                tracing::warn!(%error, "a stream of events cannot be read on now");
                self.not_before = now + STORE_PAUSE;
                return None;
            }
        };
        self.request.after = next;
        self.look = more;
        self.not_before = now + if more { share } else { share.max(GATHER) };
        let mut text = String::new();
        for event in &events {
            if let Err(refusal) = write(&mut text, event) {
                // Never of what was let in.
                tracing::error!(%refusal, "an event cannot be told");
            }
        }
        let last = events.last()?;
        self.told = Some(last.place);
        self.beat = now + HEARTBEAT;
        Some(Bytes::from(text))
    }
}

/// Writes one event. A field ends with its line, so a payload of several lines stands in several
/// `data` fields; clients put a line feed between them.
fn write(text: &mut String, event: &FeedEvent) -> Result<(), Refusal> {
    let payload = message::announced(&event.wait, event.event, event.event_id.clone(), event.at)?;
    let payload = String::from_utf8_lossy(&payload);
    text.reserve(payload.len() + 100);
    let _ = writeln!(text, "id: {}\nevent: {}", event.place.0, event.event);
    for line in lines(&payload) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    Ok(())
}

/// The lines of a text as clients of server-sent events part them: at CR LF, LF and CR.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\r', '\n']) else { return rest.take() };
        let both = text[end..].starts_with("\r\n");
        rest = Some(&text[end + 1 + usize::from(both)..]);
        Some(&text[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_clients_say_so() {
        for (text, parted) in [
            ("{}", &["{}"][..]),
            ("{\n}", &["{", "}"]),
            ("{\r\n}\r\n", &["{", "}", ""]),
            ("{\r}\r", &["{", "}", ""]),
            ("{\n\r\n\r}", &["{", "", "", "}"]),
            ("", &[""]),
        ] {
            assert_eq!(lines(text).collect::<Vec<_>>(), parted, "{text:?}");
        }
    }

    #[test]
    fn a_client_goes_on_from_a_number_that_it_names_once() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(LAST_EVENT_ID, HeaderValue::from_static(value));
            }
            last_event_id(&headers).map_err(|problem| problem.code)
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["0"]), Ok(Some(Place::START)));
        assert_eq!(read(&["17"]), Ok(Some(Place(17))));
        for bad in ["", "-1", "1.0", "x", "99999999999999999999", "1 2"] {
            assert_eq!(read(&[bad]), Err("bad-input"), "{bad}");
        }
        assert_eq!(read(&["1", "1"]), Err("bad-input"));
    }
}
