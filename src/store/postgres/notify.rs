//! Hints between daemons, over PostgreSQL's LISTEN and NOTIFY.
//!
//! A hint says that something was committed, not what, and may be lost: whoever waits looks at least
//! every [`LOOK_EVERY`] anyway. Hints need a connection of their own, straight to the server: a proxy
//! that pools transactions lets none through.

use super::connect::reason;
use super::url::Target;
use crate::store::Others;
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client};
use tokio_util::sync::CancellationToken;

/// How often a daemon looks for what others did, hints or not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At most one hint in so long: one says as much as many.
const SPACING: Duration = Duration::from_millis(5);
/// A daemon's own hint comes back in this time, or none will ever come.
const ECHO: Duration = Duration::from_secs(10);
/// Between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Sends and receives hints.
pub(super) struct Hints {
    told: Arc<Notify>,
    seen: watch::Receiver<u64>,
    stop: CancellationToken,
}

impl Hints {
    /// Starts listening. `id` is this daemon's, told with its hints.
    pub(super) fn start(target: Target, id: String, tasks: &mut JoinSet<()>) -> Self {
        let (sender, seen) = watch::channel(0);
        let told = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let listener = Listener { target, id, told: Arc::clone(&told), seen: sender };
        let stopped = stop.clone();
        tasks.spawn(async move {
            let _ = stopped.run_until_cancelled(listener.run()).await;
        });
        Self { told, seen, stop }
    }

    /// Something was committed.
    pub(super) fn tell(&self) {
        self.told.notify_one();
    }

    pub(super) fn others(&self) -> Others {
        Others { look_every: LOOK_EVERY, hints: self.seen.clone() }
    }

    pub(super) fn close(&self) {
        self.stop.cancel();
    }
}

/// Why listening ended.
enum Ended {
    /// The connection is gone.
    Lost(String),
    /// It never works here.
    Impossible(&'static str),
}

struct Listener {
    target: Target,
    id: String,
    told: Arc<Notify>,
    seen: watch::Sender<u64>,
}

impl Listener {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.listen(&mut pause).await {
                Ended::Lost(why) => tracing::debug!(why, "no hints from other daemons for now"),
                Ended::Impossible(why) => {
                    tracing::info!(
                        why,
                        "no hints from other daemons: this one looks every second; set [store] \
                         listen_url to a direct connection to the server for less delay"
                    );
                    return;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn listen(&self, pause: &mut Duration) -> Ended {
        let (client, mut connection) = match self.target.connect().await {
            Ok(connected) => connected,
            Err(error) => return Ended::Lost(reason(&error)),
        };
        let (echo, echoed) = watch::channel(false);
        let receive = async {
            let mut messages = futures::stream::poll_fn(|cx| connection.poll_message(cx));
            while let Some(message) = messages.next().await {
                match message {
                    Ok(AsyncMessage::Notification(hint)) if hint.payload() == self.id => {
                        echo.send_replace(true);
                    }
                    Ok(AsyncMessage::Notification(_)) => self.seen.send_modify(|n| *n += 1),
                    Ok(_) => {}
                    Err(error) => return Ended::Lost(reason(&error)),
                }
            }
            Ended::Lost("the server closed the connection".to_owned())
        };
        tokio::select! {
            ended = receive => ended,
            ended = self.send(&client, echoed, pause) => ended,
        }
    }

    async fn send(
        &self,
        client: &Client,
        mut echoed: watch::Receiver<bool>,
        pause: &mut Duration,
    ) -> Ended {
        if let Err(error) = client.batch_execute("LISTEN answerback").await {
            let never = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::SYNTAX_ERROR];
            return match error.code() {
                Some(code) if never.contains(code) => Ended::Impossible("the server has no LISTEN"),
                _ => Ended::Lost(reason(&error)),
            };
        }
        // The id has letters and digits only.
        let hint = format!("NOTIFY answerback, '{}'", self.id);
        if let Err(error) = client.batch_execute(&hint).await {
            return Ended::Lost(reason(&error));
        }
        if tokio::time::timeout(ECHO, echoed.wait_for(|echoed| *echoed)).await.is_err() {
            let _ = client.batch_execute("UNLISTEN *").await;
            return Ended::Impossible("nothing comes through the proxy before the server");
        }
        *pause = FIRST_PAUSE;
        // What others said meanwhile was missed.
        self.seen.send_modify(|n| *n += 1);
        loop {
            self.told.notified().await;
            if let Err(error) = client.batch_execute(&hint).await {
                return Ended::Lost(reason(&error));
            }
            tokio::time::sleep(SPACING).await;
        }
    }
}
