//! Readers of the feed of events, who go from replica to replica and on where they were.

use super::World;
use crate::history::{Fed, WaitKey};
use crate::message::Members;
use crate::text::Text;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A connection that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(5);

/// Where a reader is that has read nothing.
const START: &str = "0";

/// One event of the stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    id: String,
    event: String,
    data: String,
}

pub(super) async fn read(world: World, number: usize) {
    let mut dice = world.dice(&format!("reader {number}"));
    let mut last: String = START.to_owned();
    loop {
        let replica = dice.index(world.client.replicas());
        // Some stay long, some come and go.
        let until = Instant::now() + dice.pause(300, 8_000);
        follow(&world, number, replica, &mut last, until).await;
        tokio::time::sleep(dice.pause(10, 300)).await;
    }
}

/// Reads from one replica until `until`, or until the connection breaks.
async fn follow(world: &World, reader: usize, replica: usize, last: &mut String, until: Instant) {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::get(world.client.url(replica, "/v1/events"))
        .header("accept", "text/event-stream")
        .header("last-event-id", last.as_str());
    let Ok(request) = request.body(Empty::new()) else { return };
    let Ok(Ok(response)) = timeout_at(Instant::now() + SILENCE, client.request(request)).await
    else {
        return;
    };
    let status = response.status().as_u16();
    if status != 200 {
        if !matches!(status, 503 | 429) {
            world.recorder.mishap(world.watch.now(), format!("the feed answered {status}"));
        }
        return;
    }
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Ok(Some(Ok(piece))) = timeout_at(until, body.frame()).await {
        let Ok(piece) = piece.into_data() else { continue };
        text.extend_from_slice(&piece);
        while let Some(frame) = take_frame(&mut text) {
            if !frame.data.is_empty() {
                note(world, reader, replica, &frame);
            }
            // Also of a frame without an event: it says how far the stream is.
            if !frame.id.is_empty() {
                last.clone_from(&frame.id);
            }
        }
    }
}

fn note(world: &World, reader: usize, replica: usize, frame: &Frame) {
    let at = world.watch.now();
    let read = Members::read(&frame.data).and_then(|members| {
        Some(WaitKey {
            thread: members.text("thread_id")?.into(),
            question: members.text("question_id")?.into(),
            generation: members.generation(),
        })
    });
    let Some(wait) = read else {
        world.recorder.mishap(at, "an event of the feed cannot be read");
        return;
    };
    let (id, event): (Text, Text) = (frame.id.as_str().into(), frame.event.as_str().into());
    world.recorder.with(|h| h.fed.push(Fed { at, reader, replica, id, event, wait }));
}

/// The first whole frame, taken out of what has come.
fn take_frame(text: &mut Vec<u8>) -> Option<Frame> {
    let end = text.windows(2).position(|pair| pair == b"\n\n")?;
    let whole: Vec<u8> = text.drain(..end + 2).collect();
    let mut frame = Frame::default();
    for line in String::from_utf8_lossy(&whole).lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => value.clone_into(&mut frame.id),
            "event" => value.clone_into(&mut frame.event),
            "data" if frame.data.is_empty() => value.clone_into(&mut frame.data),
            "data" => {
                frame.data.push('\n');
                frame.data.push_str(value);
            }
            _ => {}
        }
    }
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_and_in_order() {
        let mut text =
            b": hello\n\nid: 7\nevent: wait.created\ndata: {\"a\":1,\ndata: \"b\":2}\n\nid: 8\n"
                .to_vec();
        assert_eq!(take_frame(&mut text), Some(Frame::default()));
        let frame = take_frame(&mut text).unwrap();
        assert_eq!((frame.id.as_str(), frame.event.as_str()), ("7", "wait.created"));
        assert_eq!(frame.data, "{\"a\":1,\n\"b\":2}");
        assert_eq!(take_frame(&mut text), None);
    }
}
