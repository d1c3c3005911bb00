//! Hosts that come for their answers, and others who look.

use super::World;
use super::answering::answer_in;
use super::client::{Call, wait_path};
use crate::dice::Dice;
use crate::history::{Pull, Pulled, Reply, Span, WaitKey};
use http::Method;
use std::sync::Arc;
use std::time::Duration;

/// Long polls of one host.
const POLLS: u64 = 6;

/// A host polls for its answer at one replica after the other, and says when it has it.
pub(super) fn pull(world: &World, mut dice: Dice, wait: WaitKey) {
    let Ok(room) = Arc::clone(&world.room).try_acquire_owned() else { return };
    let world = world.clone();
    tokio::spawn(async move {
        for _ in 0..POLLS {
            let patience = dice.pause(500, 5_000);
            match get(&world, &mut dice, &wait, patience).await {
                Reply::Ok(Pulled::Answer(_)) if dice.percent(75) => {
                    delete(&world, &mut dice, &wait).await;
                    break;
                }
                Reply::Ok(Pulled::Answer(_)) | Reply::Refused { .. } => break,
                Reply::Ok(Pulled::NotYet) => {}
                Reply::Unknown => tokio::time::sleep(dice.pause(20, 400)).await,
            }
            if world.is_over() {
                break;
            }
        }
        drop(room);
    });
}

/// Somebody looks at the answer once.
pub(super) async fn look(world: &World, dice: &mut Dice, wait: &WaitKey) {
    get(world, dice, wait, Duration::ZERO).await;
}

async fn get(world: &World, dice: &mut Dice, wait: &WaitKey, patience: Duration) -> Reply<Pulled> {
    let replica = world.client.pick(dice);
    let mut path = wait_path(wait, "/answer");
    if !patience.is_zero() {
        path.push_str(&format!("&wait={}ms", patience.as_millis()));
    }
    let mut call = Call::bare(replica, Method::GET, path);
    call.patience = patience;
    let begin = world.watch.now();
    let reply = world.client.judged(&call, |r| match r.status {
        204 => Some(Pulled::NotYet),
        _ => answer_in(&r.body).map(Pulled::Answer),
    });
    let reply = reply.await;
    note(world, begin, replica, wait, false, reply.clone());
    reply
}

async fn delete(world: &World, dice: &mut Dice, wait: &WaitKey) {
    for _ in 0..8 {
        let replica = world.client.pick(dice);
        let call = Call::bare(replica, Method::DELETE, wait_path(wait, "/answer"));
        let begin = world.watch.now();
        let reply = world.client.judged(&call, |_| Some(Pulled::NotYet)).await;
        let known = reply != Reply::Unknown;
        note(world, begin, replica, wait, true, reply);
        if known {
            return;
        }
        tokio::time::sleep(dice.pause(20, 400)).await;
    }
}

fn note(
    world: &World,
    begin: u64,
    replica: usize,
    wait: &WaitKey,
    delete: bool,
    reply: Reply<Pulled>,
) {
    let span = Span { begin, end: world.watch.now() };
    world.recorder.with(|h| {
        h.pulls.push(Pull { span, replica, wait: wait.clone(), delete, reply });
    });
}
