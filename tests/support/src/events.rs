//! A client of `GET /v1/events`: server-sent events, read as the standard says.

use crate::http::Api;
use crate::waiting::PATIENCE;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::Value;
use std::collections::VecDeque;
use tokio::time::timeout;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Its place, for `Last-Event-ID`.
    pub id: String,
    /// Such as `wait.created`.
    pub event: String,
    /// The lines of `data`, parted by line feeds.
    pub data: String,
}

impl Event {
    /// The data as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|e| panic!("{e}: {}", self.data))
    }

    /// The question's id and the event's type, as in `q wait.created`.
    #[must_use]
    pub fn in_short(&self) -> String {
        let question = self.json()["question_id"].as_str().unwrap_or_default().to_owned();
        format!("{question} {}", self.event)
    }
}

/// What has come of a stream so far, taken apart.
#[derive(Debug, Default)]
pub struct Parser {
    rest: Vec<u8>,
    id: String,
    event: String,
    data: Option<String>,
    found: VecDeque<Event>,
}

impl Parser {
    /// Takes more of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        // The daemon ends its lines with a line feed; a CR alone would be one too.
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8(line).expect("a stream in UTF-8");
            assert!(!line.contains('\r'), "a line end within a line: {line:?}");
            self.line(line.trim_end_matches('\n'));
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if let Some(data) = self.data.take() {
                self.found.push_back(Event { id: self.id.clone(), event, data });
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => value.clone_into(&mut self.id),
            "event" => value.clone_into(&mut self.event),
            "data" => {
                let data = self.data.get_or_insert_default();
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            "retry" | "" => {}
            other => panic!("an unknown field {other}"),
        }
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Events {
    /// What it came with.
    pub headers: HeaderMap,
    body: Incoming,
    parser: Parser,
}

impl Api {
    /// Opens `path`, such as `/v1/events`, behind the event of the id `last`.
    ///
    /// # Errors
    /// The status, or what went wrong, as text.
    pub async fn try_events(&self, path: &str, last: Option<&str>) -> Result<Events, String> {
        let mut request = Request::get(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Full::new(Bytes::new())).map_err(|e| e.to_string())?;
        let response = timeout(PATIENCE, self.client.request(request))
            .await
            .map_err(|_| "no answer".to_owned())?
            .map_err(|e| format!("{e:?}"))?;
        if response.status() != 200 {
            return Err(response.status().to_string());
        }
        let (parts, body) = response.into_parts();
        Ok(Events { headers: parts.headers, body, parser: Parser::default() })
    }

    /// The same where it must open.
    ///
    /// # Panics
    /// When it does not.
    pub async fn events(&self, path: &str, last: Option<&str>) -> Events {
        self.try_events(path, last).await.unwrap_or_else(|e| panic!("GET {path}: {e}"))
    }
}

impl Events {
    /// The next event; `None` when the other side has ended the stream or is gone.
    ///
    /// # Panics
    /// When neither comes within [`PATIENCE`].
    pub async fn try_next(&mut self) -> Option<Event> {
        timeout(PATIENCE, async {
            loop {
                if let Some(event) = self.parser.found.pop_front() {
                    return Some(event);
                }
                let frame = self.body.frame().await?.ok()?;
                if let Some(bytes) = frame.data_ref() {
                    self.parser.push(bytes);
                }
            }
        })
        .await
        .expect("an event, or the end of the stream")
    }

    /// The next event.
    ///
    /// # Panics
    /// When none comes.
    pub async fn next(&mut self) -> Event {
        self.try_next().await.expect("an event, but the stream is over")
    }

    /// The next so many, in short.
    pub async fn in_short(&mut self, n: usize) -> Vec<String> {
        let mut events = Vec::new();
        for _ in 0..n {
            events.push(self.next().await.in_short());
        }
        events
    }

    /// The newest id that has come, for going on once all events before it were taken.
    #[must_use]
    pub fn last_id(&self) -> &str {
        &self.parser.id
    }

    /// Reads until the stream says how far it is, which it does first of all.
    pub async fn begun(&mut self) {
        let begun = timeout(PATIENCE, async {
            while self.parser.id.is_empty() {
                let frame = self.body.frame().await.expect("a stream that is not over");
                let frame = frame.expect("a stream that goes on");
                self.parser.push(frame.data_ref().expect("data"));
            }
        });
        begun.await.expect("a stream says how far it is");
    }
}
