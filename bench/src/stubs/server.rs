//! Connections of a receiver.

use super::Receiver;
use crate::clock::Stopwatch;
use crate::wire::take_request;
use anyhow::{Result, ensure};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Connections that a silent receiver keeps open; the oldest is closed for one more.
const KEPT: usize = 1024;

/// After a connection could not be taken.
const PAUSE: Duration = Duration::from_millis(10);

/// Requests that may stand in the buffer, in bytes.
const LIMIT: usize = 8 << 20;

/// Answers until the runtime ends.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    receiver: Receiver,
    clock: Stopwatch,
) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut kept = VecDeque::new();
    loop {
        // Out of descriptors, or the peer has gone again: the next may succeed.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if receiver.answering().is_some() {
            let receiver = receiver.clone();
            tokio::spawn(async move { converse(stream, &receiver, clock).await });
        } else {
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(stream);
        }
    }
}

async fn converse(mut stream: TcpStream, receiver: &Receiver, clock: Stopwatch) -> Result<()> {
    stream.set_nodelay(true)?;
    let Some(mut answering) = receiver.answering() else { return Ok(()) };
    let (mut input, mut output) = (Vec::with_capacity(16 << 10), Vec::with_capacity(4 << 10));
    while stream.read_buf(&mut input).await? > 0 {
        let at = clock.micros();
        let mut taken = 0;
        while let Some(length) = take_request(&input[taken..], |request| {
            answering.answer(request, at, &mut output);
        })? {
            taken += length;
        }
        input.drain(..taken);
        ensure!(input.len() <= LIMIT, "a request without an end");
        if !output.is_empty() {
            stream.write_all(&output).await?;
            output.clear();
        }
    }
    Ok(())
}
