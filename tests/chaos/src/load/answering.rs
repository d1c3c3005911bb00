//! Approvers: they answer what the webhook was told, alone or several at once with different
//! answers, and some repeat themselves.

use super::World;
use super::client::Call;
use super::hosts;
use crate::dice::Dice;
use crate::history::{Answer, Arrival, Reply, Span, WaitKey};
use crate::message::Members;
use crate::payload;
use crate::text::Text;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Attempts at one answer.
const ATTEMPTS: u64 = 12;

pub(super) async fn approve(world: World, mut news: mpsc::Receiver<Arrival>) {
    let mut known = HashSet::new();
    while let Some(question) = news.recv().await {
        let number = world.number();
        let mut dice = world.dice(&format!("approver {number}"));
        // What comes twice is answered once, mostly.
        if !known.insert(question.dedupe_key.clone()) && !dice.percent(10) {
            continue;
        }
        if dice.percent(15) {
            continue;
        }
        // Where all are busy the question is left.
        let Ok(room) = Arc::clone(&world.room).try_acquire_owned() else { continue };
        let world = world.clone();
        tokio::spawn(async move {
            one(&world, &mut dice, &question, number).await;
            drop(room);
        });
    }
}

async fn one(world: &World, dice: &mut Dice, question: &Arrival, number: u64) {
    let wait = WaitKey {
        thread: question.thread.clone(),
        question: question.question.clone(),
        generation: question.generation.unwrap_or(1),
    };
    tokio::time::sleep(delay(world, dice, question)).await;
    let rivals = match dice.below(10) {
        0..6 => 1,
        6..9 => 2,
        _ => 3,
    };
    let mut giving = tokio::task::JoinSet::new();
    for rival in 0..rivals {
        let who = format!("a{number}.{rival}");
        let (text, again) = payload::answer(dice, &who);
        let (world, mut dice) = (world.clone(), Dice::new(dice.roll(), &who));
        let wait = wait.clone();
        let value: Text = text.as_str().into();
        giving.spawn(async move {
            let reply = give(&world, &mut dice, &wait, &value, &value).await;
            if reply == Reply::Ok(()) {
                if dice.percent(20) {
                    give(&world, &mut dice, &wait, &again.into(), &value).await;
                }
                if dice.percent(30) {
                    hosts::look(&world, &mut dice, &wait).await;
                }
            }
        });
    }
    while giving.join_next().await.is_some() {}
}

/// Mostly at once; near the deadline, where there is one, so that the two race.
fn delay(world: &World, dice: &mut Dice, question: &Arrival) -> Duration {
    let expires = Members::read(&question.body).and_then(|m| m.text("expires_at"));
    let left = expires
        .and_then(|at| answerback::contract::Time::parse(&at).ok().flatten())
        .map(|at| at.millis() - world.watch.wall().millis())
        .and_then(|left| u64::try_from(left).ok())
        .filter(|left| *left < 10_000);
    match left {
        Some(left) if dice.percent(60) => {
            Duration::from_millis((left + dice.below(400)).saturating_sub(200))
        }
        _ => dice.pause(0, 1_500),
    }
}

/// Gives an answer until somebody says yes or no to it.
async fn give(
    world: &World,
    dice: &mut Dice,
    wait: &WaitKey,
    text: &Text,
    value: &Text,
) -> Reply<()> {
    let key = dice.percent(30).then(|| format!("answer-{}", world.number()));
    let body: Text = message(dice, wait, text).into();
    for _ in 0..ATTEMPTS {
        let replica = world.client.pick(dice);
        let mut call = Call::post(replica, "/v1/answers", &body);
        call.key.clone_from(&key);
        let begin = world.watch.now();
        let reply = world.client.judged(&call, |_| Some(())).await;
        let span = Span { begin, end: world.watch.now() };
        world.recorder.with(|h| {
            h.answers.push(Answer {
                span,
                replica,
                wait: wait.clone(),
                text: text.clone(),
                value: value.clone(),
                reply: reply.clone(),
            });
        });
        if reply != Reply::Unknown || dice.percent(4) {
            return reply;
        }
        tokio::time::sleep(dice.pause(20, 400)).await;
    }
    Reply::Unknown
}

/// The message; the first generation may be named or not.
fn message(dice: &mut Dice, wait: &WaitKey, text: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let generation = match wait.generation {
        1 if dice.percent(70) => String::new(),
        n => format!(",\"generation\":{n}"),
    };
    format!(
        "{{\"thread_id\":{},\"question_id\":{},\"answer\":{text}{generation}}}",
        quoted(&wait.thread),
        quoted(&wait.question),
    )
}

/// The answer's text out of an answer message.
pub(super) fn answer_in(body: &[u8]) -> Option<Text> {
    #[derive(serde::Deserialize)]
    struct Message {
        answer: Box<RawValue>,
    }
    let message: Message = serde_json::from_slice(body).ok()?;
    Some(message.answer.get().into())
}
