//! How a call fails, and how each service says so.

use crate::waiting::Gate;
use http::HeaderMap;
use serde_json::{Value, json};

/// A service of AWS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Simple Queue Service, JSON 1.0.
    Sqs,
    /// Simple Notification Service, the query protocol.
    Sns,
    /// DynamoDB, JSON 1.0.
    DynamoDb,
}

/// What happens to a call instead of what should.
#[derive(Clone, Debug)]
pub enum Fault {
    /// An error answer; nothing is done.
    Refuse(Refusal),
    /// The call is done only once the gate is open.
    Hang(Gate),
    /// The connection is closed; nothing is done.
    Cut,
    /// The connection is closed, but everything is done: the caller cannot know.
    LoseAnswer,
    /// These entries of a batch fail: place in the batch, code, whether the sender is to blame. The rest is done.
    Entries(Vec<(usize, &'static str, bool)>),
}

impl Fault {
    /// Too many calls.
    #[must_use]
    pub fn throttled(service: Service) -> Self {
        Self::Refuse(match service {
            Service::Sqs => Refusal::sender("ThrottlingException", "Rate exceeded"),
            Service::Sns => Refusal::sender("Throttling", "Rate exceeded"),
            Service::DynamoDb => Refusal::sender(
                "ProvisionedThroughputExceededException",
                "The level of configured provisioned throughput for the table was exceeded.",
            ),
        })
    }

    /// Credentials that were good once.
    #[must_use]
    pub fn expired_token(service: Service) -> Self {
        let message = "The security token included in the request is expired";
        Self::Refuse(match service {
            Service::Sns => Refusal::sender("ExpiredToken", message).with_status(403),
            _ => Refusal::sender("ExpiredTokenException", message),
        })
    }

    /// A failure inside of AWS.
    #[must_use]
    pub fn internal() -> Self {
        Self::Refuse(Refusal::internal())
    }

    /// Credentials without the permission.
    #[must_use]
    pub fn access_denied(service: Service) -> Self {
        let message = "User is not authorized to perform this action";
        Self::Refuse(match service {
            Service::Sns => Refusal::sender("AuthorizationError", message).with_status(403),
            _ => Refusal::sender("AccessDeniedException", message),
        })
    }
}

/// An error answer.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub(super) status: u16,
    pub(super) code: String,
    message: String,
    /// The row that a failed condition met.
    item: Option<Box<Value>>,
}

impl Refusal {
    /// With any code, blaming the sender (400).
    #[must_use]
    pub fn sender(code: &str, message: impl Into<String>) -> Self {
        Self { status: 400, code: code.to_owned(), message: message.into(), item: None }
    }

    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(super) fn internal() -> Self {
        let code = "InternalFailure".to_owned();
        Self { status: 500, code, message: "An internal error occurred".to_owned(), item: None }
    }

    pub(super) fn with_item(mut self, item: Option<Value>) -> Self {
        self.item = item.map(Box::new);
        self
    }

    pub(super) fn render(&self, service: Service) -> String {
        let namespace = match service {
            Service::Sns => {
                let blamed = if self.status < 500 { "Sender" } else { "Receiver" };
                return format!(
                    "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error><Type>{blamed}</Type>\
                     <Code>{}</Code><Message>{}</Message></Error><RequestId>stub</RequestId></ErrorResponse>",
                    super::query::escaped(&self.code),
                    super::query::escaped(&self.message)
                );
            }
            Service::Sqs => "com.amazonaws.sqs",
            Service::DynamoDb => "com.amazonaws.dynamodb.v20120810",
        };
        let mut body = json!({
            "__type": format!("{namespace}#{}", self.code), "message": self.message,
        });
        if let Some(item) = &self.item {
            body["Item"] = Value::clone(item);
        }
        body.to_string()
    }
}

/// Which service and operation a request is for.
pub(super) fn addressed(headers: &HeaderMap, body: &[u8]) -> Result<(Service, String), String> {
    if let Some(target) = headers.get("x-amz-target").and_then(|v| v.to_str().ok()) {
        let (name, operation) = target.split_once('.').ok_or("no operation in X-Amz-Target")?;
        let service = match name {
            "AmazonSQS" => Service::Sqs,
            "DynamoDB_20120810" => Service::DynamoDb,
            other => return Err(format!("the stub does not play {other}")),
        };
        return Ok((service, operation.to_owned()));
    }
    let action = url::form_urlencoded::parse(body).find(|(name, _)| name == "Action");
    let (_, action) = action.ok_or("neither X-Amz-Target nor Action")?;
    Ok((Service::Sns, action.into_owned()))
}

/// AWS takes nothing unsigned. The signature itself is not checked, only that it is for this service.
pub(super) fn signed(headers: &HeaderMap, service: Service) -> Result<(), Refusal> {
    let scope = match service {
        Service::Sqs => "/sqs/aws4_request",
        Service::Sns => "/sns/aws4_request",
        Service::DynamoDb => "/dynamodb/aws4_request",
    };
    let header = headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default();
    if header.starts_with("AWS4-HMAC-SHA256 ") && header.contains(scope) {
        return Ok(());
    }
    Err(Refusal {
        status: 403,
        ..Refusal::sender("MissingAuthenticationTokenException", "Missing Authentication Token")
    })
}
