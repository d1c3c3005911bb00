use super::*;
use crate::{Api, Gate};
use http::Method;
use serde_json::json;

async fn json_call(aws: &Aws, target: &str, body: &Value) -> crate::Reply {
    let service = if target.starts_with("AmazonSQS") { "sqs" } else { "dynamodb" };
    let signed = format!("AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/{service}/aws4_request");
    let headers = [("x-amz-target", target), ("authorization", signed.as_str())];
    let api = Api::new(aws.endpoint());
    api.send(Method::POST, "/", &headers, body.to_string().into()).await
}

async fn sns_call(aws: &Aws, fields: &[(&str, &str)]) -> crate::Reply {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    let headers =
        [("authorization", "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/sns/aws4_request")];
    let api = Api::new(aws.endpoint());
    api.send(Method::POST, "/", &headers, form.finish().into()).await
}

fn kind(reply: &crate::Reply) -> String {
    let json = reply.json();
    let name = json["__type"].as_str().unwrap_or_default();
    name.rsplit('#').next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_ordered_queue_swallows_a_key_for_five_minutes_and_answers_as_if_it_had_not() {
    let aws = Aws::strict().await;
    let url = aws.create_queue("q.fifo");
    let send = json!({"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"});
    for (advance, standing) in [(0, 1), (299, 1), (1, 2)] {
        aws.advance(Duration::from_secs(advance));
        assert_eq!(json_call(&aws, "AmazonSQS.SendMessage", &send).await.status, 200);
        assert_eq!(aws.messages(&url).len(), standing);
    }
    assert_eq!(aws.swallowed(&url), 1);
}

#[tokio::test]
async fn a_batch_is_refused_as_a_whole_or_entry_by_entry() {
    let aws = Aws::strict().await;
    let url = aws.create_queue("q");
    let batch = |entries: Value| json!({"QueueUrl": url, "Entries": entries});
    let target = "AmazonSQS.SendMessageBatch";
    for (entries, code) in [
        (json!([]), "EmptyBatchRequest"),
        (
            json!([{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "x"}]),
            "BatchEntryIdsNotDistinct",
        ),
        (json!([{"Id": "a b", "MessageBody": "x"}]), "InvalidBatchEntryId"),
        (json!([{"Id": "a", "MessageBody": "x".repeat(1_048_577)}]), "BatchRequestTooLong"),
    ] {
        assert_eq!(kind(&json_call(&aws, target, &batch(entries)).await), code);
    }
    let mixed = json!([
        {"Id": "0", "MessageBody": "good"},
        {"Id": "1", "MessageBody": "bad \u{ffff}"},
        {"Id": "2", "MessageBody": "told"},
        {"Id": "3", "MessageBody": "ordered", "MessageDeduplicationId": "d"},
    ]);
    aws.fail_with(|_, _| Some(Fault::Entries(vec![(2, "InternalError", false)])));
    let answer = json_call(&aws, target, &batch(mixed)).await.expect(200).json();
    let failed = answer["Failed"].as_array().unwrap();
    let codes: Vec<_> = failed
        .iter()
        .map(|f| {
            (
                f["Id"].as_str().unwrap(),
                f["Code"].as_str().unwrap(),
                f["SenderFault"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        codes,
        [
            ("1", "InvalidMessageContents", true),
            ("2", "InternalError", false),
            ("3", "InvalidParameterValue", true)
        ]
    );
    assert_eq!(answer["Successful"].as_array().unwrap().len(), 1);
    assert_eq!(aws.messages("q").len(), 1);
}

#[tokio::test]
async fn a_topic_keeps_attributes_as_sent_and_refuses_what_aws_refuses() {
    let aws = Aws::strict().await;
    let arn = aws.create_topic("t");
    let publish = |extra: &[(&'static str, &'static str)]| {
        let mut fields =
            vec![("Action", "Publish"), ("TopicArn", arn.as_str()), ("Message", "m & m")];
        fields.extend_from_slice(extra);
        fields
    };
    let attribute = |name, kind, value| {
        [
            ("Subject", "wait.created"),
            ("MessageAttributes.entry.1.Name", name),
            ("MessageAttributes.entry.1.Value.DataType", kind),
            ("MessageAttributes.entry.1.Value.StringValue", value),
        ]
    };
    let good = sns_call(&aws, &publish(&attribute("amount", "Number", "41000"))).await;
    assert!(good.expect(200).text().contains("<MessageId>"));
    let bad = sns_call(&aws, &publish(&attribute("a b", "String", "x"))).await;
    assert!(bad.expect(400).text().contains("<Code>InvalidParameterValue</Code>"));
    let bad = sns_call(&aws, &publish(&[("Subject", "two\nlines")])).await;
    assert_eq!(bad.status, 400);
    let missing =
        sns_call(&aws, &[("Action", "Publish"), ("TopicArn", "no"), ("Message", "m")]).await;
    assert_eq!(missing.status, 404);
    let published = aws.published(&arn);
    assert_eq!(published.len(), 1);
    assert_eq!(published[0].message, "m & m");
    assert_eq!(published[0].attribute("amount"), Some(("Number", "41000")));

    let entry = |n: usize, name: &str| format!("PublishBatchRequestEntries.member.{n}.{name}");
    let mut batch =
        vec![("Action".to_owned(), "PublishBatch"), ("TopicArn".to_owned(), arn.as_str())];
    for (n, message) in [(1, "one"), (2, "\u{1}")] {
        batch.push((entry(n, "Id"), if n == 1 { "a" } else { "b" }));
        batch.push((entry(n, "Message"), message));
    }
    let batch: Vec<_> = batch.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let answer = sns_call(&aws, &batch).await.expect(200);
    assert!(answer.text().contains("<Successful><member><Id>a</Id>"), "{}", answer.text());
    assert!(
        answer.text().contains("<Failed><member><Id>b</Id><Code>InvalidMessageContents</Code>")
    );
}

#[tokio::test]
async fn a_condition_guards_a_row() {
    let aws = Aws::strict().await;
    aws.create_table("waits");
    let row = |status: &str| json!({"pk": {"S": "p"}, "sk": {"S": "s"}, "status": {"S": status}});
    let put = |status: &str, condition: &str| json!({"TableName": "waits", "Item": row(status), "ConditionExpression": condition, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"});
    let target = "DynamoDB_20120810.PutItem";
    let fresh = "attribute_not_exists(pk)";
    assert_eq!(json_call(&aws, target, &put("open", fresh)).await.status, 200);
    let again = json_call(&aws, target, &put("answered", fresh)).await;
    assert_eq!(kind(&again), "ConditionalCheckFailedException");
    assert_eq!(again.json()["Item"], row("open"));
    assert_eq!(aws.items("waits"), [row("open")]);
    let update = json!({
        "TableName": "waits", "Key": {"pk": {"S": "p"}, "sk": {"S": "s"}},
        "UpdateExpression": "SET #s = :s", "ExpressionAttributeNames": {"#s": "status"},
        "ExpressionAttributeValues": {":s": {"S": "answered"}},
    });
    assert_eq!(json_call(&aws, "DynamoDB_20120810.UpdateItem", &update).await.status, 200);
    assert_eq!(aws.items("waits"), [row("answered")]);
    let unsigned = Api::new(aws.endpoint());
    let headers = [("x-amz-target", target)];
    let answer =
        unsigned.send(Method::POST, "/", &headers, put("x", fresh).to_string().into()).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn faults_come_as_told_and_a_lost_answer_leaves_its_effect() {
    let aws = Aws::strict().await;
    let url = aws.create_queue("q");
    let send = json!({"QueueUrl": url, "MessageBody": "x"});
    let gate = Gate::closed();
    let held = gate.clone();
    aws.fail_with(move |call, before| match before {
        0 => Some(Fault::throttled(call.service)),
        1 => Some(Fault::expired_token(call.service)),
        2 => Some(Fault::internal()),
        3 => Some(Fault::Hang(held.clone())),
        _ => None,
    });
    let target = "AmazonSQS.SendMessage";
    assert_eq!(kind(&json_call(&aws, target, &send).await), "ThrottlingException");
    assert_eq!(kind(&json_call(&aws, target, &send).await), "ExpiredTokenException");
    assert_eq!(json_call(&aws, target, &send).await.status, 500);
    assert_eq!(aws.messages("q").len(), 0);
    let release = async {
        aws.until("the held call", |aws| (aws.calls().len() == 4).then_some(())).await;
        assert_eq!(aws.messages("q").len(), 0);
        gate.open();
    };
    let (held, ()) = tokio::join!(json_call(&aws, target, &send), release);
    assert_eq!((held.status, aws.messages("q").len()), (200, 1));

    let signed = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/sqs/aws4_request";
    let headers = [("x-amz-target", target), ("authorization", signed)];
    let api = Api::new(aws.endpoint());
    for (fault, standing) in [(Fault::Cut, 1), (Fault::LoseAnswer, 2)] {
        aws.fail_with(move |_, _| Some(fault.clone()));
        let lost = api.try_send(Method::POST, "/", &headers, send.to_string().into()).await;
        assert!(lost.is_err());
        assert_eq!(aws.messages("q").len(), standing);
    }
}

#[tokio::test]
async fn the_fast_stub_counts_messages_and_names_them_in_its_answers() {
    let aws = FastAws::start().await;
    let api = Api::new(aws.endpoint());
    let entries = json!({"QueueUrl": "q", "Entries": [{"MessageBody": "x", "Id": "a"}, {"Id": "b", "MessageBody": "y"}]});
    let batch = [("x-amz-target", "AmazonSQS.SendMessageBatch")];
    let sqs = api.send(Method::POST, "/", &batch, entries.to_string().into()).await.json();
    assert_eq!(sqs["Successful"][1]["Id"], "b");
    let form = "Action=PublishBatch&PublishBatchRequestEntries.member.1.Id=7&PublishBatchRequestEntries.member.1.Message=x";
    let sns = api.send(Method::POST, "/", &[], form.into()).await;
    assert!(sns.text().contains("<Id>7</Id>"));
    let put = [("x-amz-target", "DynamoDB_20120810.PutItem")];
    assert_eq!(api.send(Method::POST, "/", &put, "{}".into()).await.text(), "{}");
    assert_eq!(aws.counts(), Counts { sqs: 2, sns: 1, dynamodb: 1, requests: 3 });
}
