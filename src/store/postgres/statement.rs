//! A statement with its values, for where both are put together bit by bit.

use super::connect::{Lent, Link, Param};
use super::fail::Done;
use futures::FutureExt as _;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// A value of a type that PostgreSQL is told.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Int(i64),
    Int4(i32),
    Text(String),
    Blob(Vec<u8>),
    Ints(Vec<i64>),
    Smalls(Vec<i16>),
}

impl Value {
    fn param(&self) -> Param<'_> {
        let (value, kind): (&(dyn ToSql + Sync), Type) = match self {
            Self::Int(value) => (value, Type::INT8),
            Self::Int4(value) => (value, Type::INT4),
            Self::Text(value) => (value, Type::TEXT),
            Self::Blob(value) => (value, Type::BYTEA),
            Self::Ints(value) => (value, Type::INT8_ARRAY),
            Self::Smalls(value) => (value, Type::INT2_ARRAY),
        };
        (value, kind)
    }

    /// A number of rows.
    pub(super) fn count(n: usize) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

/// A statement with its values.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    sql: String,
    values: Vec<Value>,
}

impl Statement {
    pub(super) fn new(sql: &str, values: Vec<Value>) -> Self {
        Self { sql: sql.to_owned(), values }
    }

    /// More text.
    pub(super) fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// More text, before all of it.
    pub(super) fn prepend(&mut self, sql: &str) {
        self.sql.insert_str(0, sql);
    }

    /// A value, at the end of the text.
    pub(super) fn bind(&mut self, value: Value) {
        self.values.push(value);
        self.sql.push_str(&format!("${}", self.values.len()));
    }

    /// Runs it within something.
    pub(super) async fn run(&self, lent: &Lent) -> Done<Vec<Row>> {
        let params: Vec<Param<'_>> = self.values.iter().map(Value::param).collect();
        lent.query_once(&self.sql, &params).await
    }

    /// Runs it alone. It may be run twice, the first time without anybody's knowing.
    pub(super) async fn read(self, link: &Link) -> Done<Vec<Row>> {
        let this = Arc::new(self);
        link.read(move |lent| {
            let this = Arc::clone(&this);
            async move { this.run(lent).await }.boxed()
        })
        .await
    }
}
