//! Carries the schedule out, and writes down when which fault was in effect.

use crate::clock::Watch;
use crate::database::Store;
use crate::history::{Injected, Recorder, Span};
use crate::receivers::Receivers;
use crate::replica::Replica;
use crate::schedule::{Fault, Planned};
use anyhow::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// All that can be made to fail.
#[derive(Clone)]
pub struct Victims {
    /// The daemons.
    pub replicas: Arc<Vec<Replica>>,
    /// What they share.
    pub store: Arc<Store>,
    /// Whom they send to.
    pub receivers: Arc<Receivers>,
    /// The run's time.
    pub watch: Watch,
    /// Where faults are written down.
    pub recorder: Recorder,
}

impl Victims {
    /// Carries out every fault at its time. Returns once the last has ended.
    ///
    /// # Errors
    /// When the harness itself fails.
    pub async fn suffer(&self, schedule: Vec<Planned>) -> Result<()> {
        let mut under_way = JoinSet::new();
        for planned in schedule {
            sleep_until(self.watch.instant(planned.at * 1_000)).await;
            let victims = self.clone();
            under_way.spawn(async move { victims.one(planned).await });
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn one(&self, planned: Planned) -> Result<()> {
        let begin = self.watch.now();
        self.begin(&planned.fault).await?;
        // Written down at once: who is judged meanwhile must find its excuse.
        let at = self.recorder.with(|h| {
            let span = Span { begin, end: u64::MAX };
            h.faults.push(Injected { span, fault: planned.fault.clone() });
            h.faults.len() - 1
        });
        tokio::time::sleep(Duration::from_millis(planned.lasts)).await;
        self.end(&planned.fault).await?;
        let end = self.watch.now();
        self.recorder.with(|h| h.faults[at].span.end = end);
        Ok(())
    }

    async fn begin(&self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Kill { replica } => self.replicas[*replica].kill().await,
            Fault::Stop { replica } => self.replicas[*replica].signal("STOP").await,
            Fault::Step { replica, millis } => self.replicas[*replica].set_clock(*millis)?,
            Fault::Cut { replica } => self.store.cut(*replica),
            Fault::Slow { replica, millis } => {
                self.store.slow(*replica, Duration::from_millis(*millis));
            }
            Fault::Stall { replica } => self.store.stall(*replica),
            Fault::Database { immediate } => self.store.stop(*immediate).await,
            Fault::Down { place } => self.receivers.down(*place),
            Fault::Hang { place } => self.receivers.hang(*place),
        }
        Ok(())
    }

    async fn end(&self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Kill { replica } => self.replicas[*replica].start().await?,
            Fault::Stop { replica } => self.replicas[*replica].signal("CONT").await,
            Fault::Step { replica, .. } => self.replicas[*replica].set_clock(0)?,
            Fault::Cut { replica } | Fault::Slow { replica, .. } | Fault::Stall { replica } => {
                self.store.mend(*replica);
            }
            Fault::Database { .. } => self.store.start().await,
            Fault::Down { place } | Fault::Hang { place } => self.receivers.well(*place),
        }
        Ok(())
    }
}
