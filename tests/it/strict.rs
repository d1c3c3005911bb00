//! The captures against a stub that refuses what AWS refuses and an emulator lets pass: too many or
//! badly named attributes, ids of a FIFO queue that are too long, items that are too large.

use crate::bed::{all_of, fresh, keyed, settled};
use crate::cases::Posted;
use answerback_testkit::aws::Aws;
use answerback_testkit::{Api, cases};
use std::collections::BTreeSet;

#[tokio::test]
async fn nothing_that_the_daemon_sends_is_refused_by_awss_own_limits() {
    let aws = Aws::strict().await;
    let name = fresh("strict");
    let (queue, fifo) = (aws.create_queue(&name), aws.create_queue(&format!("{name}.fifo")));
    let (topic, fifo_topic) = (aws.create_topic(&name), aws.create_topic(&format!("{name}.fifo")));
    aws.create_table(&name);
    let endpoint = aws.endpoint();
    let place = format!("endpoint_url = \"{endpoint}\"\nregion = \"us-east-1\"");
    let daemon = keyed()
        .aws_credentials()
        .config(&format!(
            r#"
[announcers.queue]
type = "sqs"
queue_url = "{queue}"
{place}
[announcers.fifo]
type = "sqs"
queue_url = "{fifo}"
{place}
[announcers.topic]
type = "sns"
topic_arn = "{topic}"
{place}
[announcers.fifo_topic]
type = "sns"
topic_arn = "{fifo_topic}"
{place}
[announcers.table]
type = "dynamodb"
table = "{name}"
{place}
"#
        ))
        .start()
        .await;
    let publisher = Api::new(daemon.url(""));
    let (mut taken, mut accepted) = (BTreeSet::new(), 0);
    for posted in cases::all().into_iter().filter_map(Posted::of) {
        let reply = posted.post(&publisher).await;
        if reply.status == 202 {
            accepted += 1;
            taken.insert(posted.id("thread_id"));
        }
    }
    assert!(accepted > 100, "{accepted}");
    settled(&daemon).await;
    let dead = all_of(daemon.api(), "/v1/announcements?state=dead").await;
    let refused: Vec<_> = dead.iter().filter(|row| row["reason"] != "too-large").collect();
    assert!(refused.is_empty(), "{refused:#?}");
    let announced = all_of(daemon.api(), "/v1/announcements?state=delivered").await;
    let at = |announcer: &str| announced.iter().filter(|r| r["announcer"] == announcer).count();
    let withdrawn = all_of(daemon.api(), "/v1/announcements?state=withdrawn").await.len();
    assert!(withdrawn <= 5, "{withdrawn}");
    assert_eq!(aws.messages(&queue).len(), at("queue"));
    assert_eq!(aws.messages(&fifo).len(), at("fifo"));
    assert_eq!(aws.swallowed(&fifo), 0, "no two waits have one key");
    assert_eq!(aws.published(&topic).len(), at("topic"));
    // Whatever a thread's id is, its order is kept: a group a thread.
    let groups: BTreeSet<_> =
        aws.messages(&fifo).into_iter().map(|m| m.group_id.unwrap_or_default()).collect();
    assert!(groups.len() + 2 >= taken.len(), "{} groups, {} threads", groups.len(), taken.len());
}
