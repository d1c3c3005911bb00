"""Makes the queue, the topic and the table that deploy/compose.toml announces to, in an emulator.

AWS_ENDPOINT_URL says where; running it again changes nothing.
"""

import boto3

sqs = boto3.client("sqs")
sqs.create_queue(QueueName="waits.fifo", Attributes={"FifoQueue": "true"})

boto3.client("sns").create_topic(Name="waits")

dynamodb = boto3.client("dynamodb")
if "waits" not in dynamodb.list_tables()["TableNames"]:
    dynamodb.create_table(
        TableName="waits",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
            {"AttributeName": "status", "AttributeType": "S"},
            {"AttributeName": "expires_at", "AttributeType": "S"},
        ],
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by_status",
                "KeySchema": [
                    {"AttributeName": "status", "KeyType": "HASH"},
                    {"AttributeName": "expires_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
