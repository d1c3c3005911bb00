//! Announces waits as lines of the daemon's own log: which wait, what happened, until when. Never
//! the question, the answer, the tags or who answered.

use answerback_contract::settings::{Problem, Settings};
use answerback_contract::{
    Announcer, Attempt, ConnectError, Connecting, Field, Kind, Limits, Message, Outcome, Purpose,
    Target, async_trait,
};
use std::sync::Arc;

/// `type = "log"` in `[announcers.NAME]`. Takes no settings of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogKind;

impl Kind for LogKind {
    fn name(&self) -> &'static str {
        "log"
    }

    fn fields(&self) -> &'static [Field] {
        &[]
    }

    fn validate(
        &self,
        _purpose: Purpose,
        _settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        Ok(Arc::new(LogTarget))
    }
}

struct LogTarget;

#[async_trait]
impl Target for LogTarget {
    fn limits(&self) -> Limits {
        // Payloads are not looked at, so their size does not matter.
        const ANY: usize = 1 << 30;
        Limits { batch_messages: 1_000, batch_bytes: ANY, message_bytes: ANY }
    }

    fn describe(&self) -> String {
        "the log".to_owned()
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        Ok(Arc::new(LogAnnouncer { name: connecting.name.clone() }))
    }
}

struct LogAnnouncer {
    name: String,
}

#[async_trait]
impl Announcer for LogAnnouncer {
    async fn announce(&self, batch: &[Message], _attempt: Attempt) -> Vec<Outcome> {
        for message in batch {
            write(&self.name, message);
        }
        vec![Outcome::Delivered; batch.len()]
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        Ok(())
    }
}

/// One line a message.
fn write(announcer: &str, message: &Message) {
    tracing::info!(
        target: "answerback::announce",
        announcer,
        event = message.event.name(),
        event_id = message.event_id.as_str(),
        thread_id = message.thread_id.as_str(),
        question_id = message.question_id.as_str(),
        generation = message.generation.get(),
        dedupe_key = message.dedupe_key.as_str(),
        state = message.state.name(),
        expires_at = message.expires_at.map(tracing::field::display),
        answered_via = message.answered_via.map(|via| via.name()),
        "{}", message.event.name(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::testing::{MapSecrets, settings, text};
    use answerback_contract::{
        Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, QuestionId, ThreadId, Time, Via,
        WaitState,
    };
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8(bytes.clone()).unwrap()
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    fn message(expires_at: Option<Time>) -> Message {
        let payload = Bytes::from_static(br#"{"question":"s3cret","tags":{"k":"s3cret"}}"#);
        Message {
            event: Event::Answered,
            event_id: EventId::new("01JAV3K2R8Q9WZ7M4X1YB6N0PD").unwrap(),
            thread_id: ThreadId::new("order-4471").unwrap(),
            question_id: QuestionId::new("q-1").unwrap(),
            generation: Generation::FIRST,
            dedupe_key: DedupeKey::of(Event::Answered, &DedupeRest::kept("q-1"), 0),
            wait_key: DedupeRest::kept("q-1"),
            payload: payload.clone(),
            envelope: payload,
            state: WaitState::Completed,
            expires_at,
            at: Time::from_millis(0),
            answered_by: Some("s3cret".to_owned()),
            answered_via: Some(Via::Link),
        }
    }

    fn logged(messages: &[Message]) -> (Vec<Outcome>, String) {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().json().with_writer(lines.clone()).finish();
        let target = LogKind
            .validate(Purpose::Announce, &mut settings(vec![], MapSecrets::default()))
            .ok()
            .unwrap();
        let connecting =
            Connecting { name: "console".to_owned(), attempt_timeout: Duration::from_secs(1) };
        let attempt = Attempt { now: Time::MIN, timeout: Duration::from_secs(1) };
        let outcomes = tracing::subscriber::with_default(subscriber, || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let announcer = target.connect(&connecting).await.unwrap();
                announcer.announce(messages, attempt).await
            })
        });
        (outcomes, lines.text())
    }

    #[test]
    fn one_line_a_message_names_the_wait_and_nothing_that_was_said() {
        let (outcomes, text) = logged(&[message(Some(Time::from_millis(0))), message(None)]);
        assert_eq!(outcomes, vec![Outcome::Delivered; 2]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        for wanted in [
            r#""target":"answerback::announce""#,
            r#""announcer":"console""#,
            r#""event":"wait.answered""#,
            r#""thread_id":"order-4471""#,
            r#""question_id":"q-1""#,
            r#""dedupe_key":"wait.answered:q-1""#,
            r#""generation":1"#,
            r#""expires_at":"1970-01-01T00:00:00.000Z""#,
            r#""answered_via":"link""#,
        ] {
            assert!(lines[0].contains(wanted), "{wanted} in {}", lines[0]);
        }
        assert!(!lines[1].contains("expires_at"), "{}", lines[1]);
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn it_takes_no_settings_of_its_own() {
        let mut settings = settings(vec![("level", text("debug"))], MapSecrets::default());
        assert!(LogKind.validate(Purpose::Announce, &mut settings).is_ok());
        assert!(settings.finish().is_err());
    }
}
