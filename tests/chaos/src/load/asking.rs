//! Askers: each publishes in threads of its own, one question after the other, and asks again when
//! it does not learn what came of it.

use super::client::{Call, wait_path};
use super::{World, hosts};
use crate::dice::Dice;
use crate::history::{Accepted, Cancel, Publish, Reply, Span, WaitKey};
use crate::payload::{self, Asked};
use crate::setup::ROUTED;
use crate::text::Text;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Questions that a thread has before the asker goes on to another.
const A_THREAD: u64 = 24;
/// Attempts at one publish.
const ATTEMPTS: u64 = 12;

/// A publish as it is sent, however often.
#[derive(Clone, Debug)]
struct Plan {
    thread: Text,
    question: Text,
    event_id: Text,
    body: Text,
    variant: u32,
    deadline: Option<i64>,
    default: Option<Text>,
    key: Option<String>,
}

pub(super) async fn ask(world: World, number: u64) {
    let mut dice = world.dice(&format!("asker {number}"));
    let pace = 2_000 * super::ASKERS / world.rate.max(1);
    let mut threads: Vec<Text> = Vec::new();
    let mut recent: Vec<Plan> = Vec::new();
    for n in 0_u64.. {
        if world.is_over() {
            return;
        }
        if n % A_THREAD == 0 {
            threads = [ROUTED, "p-", "g-"]
                .map(|kind| {
                    format!("{kind}{number}-{n} {}", ["α", "x", "猫"][dice.index(3)]).into()
                })
                .to_vec();
            recent.clear();
        }
        let thread = dice.pick(&threads).clone();
        let plan = plan(&world, &mut dice, &thread, &recent);
        if let Some(accepted) = publish(&world, &mut dice, &plan).await {
            after(&world, &mut dice, &plan, &accepted);
        }
        recent.push(plan);
        if recent.len() > 12 {
            recent.remove(0);
        }
        tokio::time::sleep(dice.pause(0, pace)).await;
    }
}

/// A new question; or one that was asked before, in one of the ways in which that happens.
fn plan(world: &World, dice: &mut Dice, thread: &Text, recent: &[Plan]) -> Plan {
    let number = world.number();
    if !recent.is_empty() && dice.percent(20) {
        let before = dice.pick(recent).clone();
        match dice.below(10) {
            // The same publish once more.
            0..4 => return before,
            // The host asks again.
            4..7 => {
                let variant = before.variant;
                return make(world, dice, &before.thread, before.question, number, variant);
            }
            // The host has moved on and asks something else.
            _ => {
                let variant = u32::try_from(number).unwrap_or(u32::MAX);
                return make(world, dice, &before.thread, before.question, number, variant);
            }
        }
    }
    let question = match number % 9 {
        0 => format!("q {number}/ü%2F"),
        1 => format!("問い-{number}"),
        _ => format!("q-{number}"),
    };
    let variant = u32::try_from(number).unwrap_or(u32::MAX);
    make(world, dice, thread, question.into(), number, variant)
}

fn make(
    world: &World,
    dice: &mut Dice,
    thread: &Text,
    question: Text,
    number: u64,
    variant: u32,
) -> Plan {
    let event_id: Text = format!("e-{number}").into();
    let (mut deadline, mut default) = (None, None);
    let far = match dice.below(100) {
        0..15 => Some(dice.millis(1_500, 9_000)),
        15..22 => Some(dice.millis(9_000, 40_000)),
        _ => None,
    };
    if let Some(far) = far {
        deadline = Some(world.watch.wall().after(Duration::from_millis(far)));
        if dice.percent(75) {
            default = Some(format!("{{\"action\":\"default\",\"of\":\"e-{number}\",\"n\":1.00}}"));
        }
    }
    let asked = Asked {
        thread,
        question_id: &question,
        event_id: &event_id,
        question: &payload::question(u64::from(variant)),
        expires_at: deadline.map(|at| at.to_string()),
        default: default.as_deref(),
        reply_to: thread.starts_with("p-").then_some(&*world.reply_to),
    };
    let body: Text = payload::envelope(&asked, dice).into();
    world.bodies.keep(&event_id, &body);
    let key = dice.percent(30).then(|| format!("publish-{event_id}"));
    Plan {
        thread: thread.clone(),
        question,
        event_id,
        body,
        variant,
        deadline: deadline.map(answerback::contract::Time::millis),
        default: default.map(Into::into),
        key,
    }
}

/// Publishes until it is acknowledged; now and then somebody gives up.
async fn publish(world: &World, dice: &mut Dice, plan: &Plan) -> Option<Accepted> {
    for _ in 0..ATTEMPTS {
        let replica = world.client.pick(dice);
        let mut call = Call::post(replica, "/v1/waits", &plan.body);
        call.key.clone_from(&plan.key);
        let begin = world.watch.now();
        let reply = world.client.judged(&call, |r| accepted(&r.body)).await;
        let span = Span { begin, end: world.watch.now() };
        world.recorder.with(|h| {
            h.publishes.push(Publish {
                span,
                replica,
                thread: plan.thread.clone(),
                question: plan.question.clone(),
                event_id: plan.event_id.clone(),
                body: plan.body.clone(),
                variant: plan.variant,
                keyed: plan.key.is_some(),
                deadline: plan.deadline,
                default: plan.default.clone(),
                reply: reply.clone(),
            });
        });
        match reply {
            Reply::Ok(accepted) => return Some(accepted),
            Reply::Refused { .. } => return None,
            Reply::Unknown if dice.percent(4) => return None,
            Reply::Unknown => tokio::time::sleep(dice.pause(20, 400)).await,
        }
    }
    None
}

fn accepted(body: &[u8]) -> Option<Accepted> {
    let value: Value = serde_json::from_slice(body).ok()?;
    Some(Accepted {
        generation: u32::try_from(value["generation"].as_u64()?).ok()?,
        dedupe_key: value["dedupe_key"].as_str()?.into(),
        duplicate: value["duplicate"].as_bool()?,
    })
}

/// What an asker does once the question is out: hosts that pull come for the answer, some withdraw.
fn after(world: &World, dice: &mut Dice, plan: &Plan, accepted: &Accepted) {
    let wait = WaitKey {
        thread: plan.thread.clone(),
        question: plan.question.clone(),
        generation: accepted.generation,
    };
    let pulled = wait.thread.starts_with("g-");
    if pulled && !accepted.duplicate && dice.percent(60) {
        hosts::pull(world, Dice::new(dice.roll(), "pull"), wait.clone());
    }
    if dice.percent(5) {
        let Ok(room) = Arc::clone(&world.room).try_acquire_owned() else { return };
        let (world, mut dice) = (world.clone(), Dice::new(dice.roll(), "cancel"));
        tokio::spawn(async move {
            tokio::time::sleep(dice.pause(0, 2_500)).await;
            cancel(&world, &mut dice, wait).await;
            drop(room);
        });
    }
}

async fn cancel(world: &World, dice: &mut Dice, wait: WaitKey) {
    for _ in 0..ATTEMPTS {
        let replica = world.client.pick(dice);
        let call = Call::post(replica, wait_path(&wait, "/cancel"), &"{}".into());
        let begin = world.watch.now();
        let reply = world.client.judged(&call, |_| Some(())).await;
        let span = Span { begin, end: world.watch.now() };
        let known = reply != Reply::Unknown;
        world.recorder.with(|h| {
            h.cancels.push(Cancel { span, replica, wait: wait.clone(), reply });
        });
        if known || dice.percent(10) {
            return;
        }
        tokio::time::sleep(dice.pause(20, 400)).await;
    }
}
