//! Rows on their way, and the arrays that a statement takes them in.

use tokio_postgres::types::{ToSql, Type};

/// A value of a row, of one of PostgreSQL's types.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Big(Option<i64>),
    Int(i32),
    Small(i16),
    Bool(bool),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// A column's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Big,
    Int,
    Small,
    Bool,
    Text,
    Bytes,
}

impl Kind {
    fn array(self) -> (&'static str, Type) {
        match self {
            Self::Big => ("BIGINT[]", Type::INT8_ARRAY),
            Self::Int => ("INTEGER[]", Type::INT4_ARRAY),
            Self::Small => ("SMALLINT[]", Type::INT2_ARRAY),
            Self::Bool => ("BOOLEAN[]", Type::BOOL_ARRAY),
            Self::Text => ("TEXT[]", Type::TEXT_ARRAY),
            Self::Bytes => ("BYTEA[]", Type::BYTEA_ARRAY),
        }
    }
}

/// A table of PostgreSQL and its columns that are filled.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) table: &'static str,
    pub(super) columns: &'static [(&'static str, Kind)],
}

/// An array of a statement.
pub(super) type Array<'r> = (Box<dyn ToSql + Sync + Send + 'r>, Type);

impl Filled {
    /// The statement that inserts any number of rows.
    pub(super) fn sql(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        let arrays = self.columns.iter().enumerate();
        let arrays: Vec<String> =
            arrays.map(|(n, (_, kind))| format!("${}::{}", n + 1, kind.array().0)).collect();
        let (table, names, arrays) = (self.table, names.join(", "), arrays.join(", "));
        format!("INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays})")
    }

    /// What it takes: the columns of rows, each of which has a cell a column.
    pub(super) fn arrays<'r>(&self, rows: &'r [Vec<Cell>]) -> Vec<Array<'r>> {
        let columns = self.columns.iter().enumerate();
        columns.map(|(n, (_, kind))| (column(rows, n, *kind), kind.array().1)).collect()
    }
}

/// The cells of one column. A cell of another type would be NULL, which the comparison finds.
fn column(rows: &[Vec<Cell>], n: usize, kind: Kind) -> Box<dyn ToSql + Sync + Send + '_> {
    let cells = rows.iter().map(|row| row.get(n));
    match kind {
        Kind::Big => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Big(value)) => *value,
                    _ => None,
                })
                .collect::<Vec<Option<i64>>>(),
        ),
        Kind::Int => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Int(value)) => Some(*value),
                    _ => None,
                })
                .collect::<Vec<Option<i32>>>(),
        ),
        Kind::Small => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Small(value)) => Some(*value),
                    _ => None,
                })
                .collect::<Vec<Option<i16>>>(),
        ),
        Kind::Bool => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Bool(value)) => Some(*value),
                    _ => None,
                })
                .collect::<Vec<Option<bool>>>(),
        ),
        Kind::Text => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Text(value)) => value.as_deref(),
                    _ => None,
                })
                .collect::<Vec<Option<&str>>>(),
        ),
        Kind::Bytes => Box::new(
            cells
                .map(|cell| match cell {
                    Some(Cell::Bytes(value)) => value.as_deref(),
                    _ => None,
                })
                .collect::<Vec<Option<&[u8]>>>(),
        ),
    }
}

impl Cell {
    /// How much room it takes on the way, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(value) => value.as_ref().map_or(0, String::len),
            Self::Bytes(value) => value.as_ref().map_or(0, Vec::len),
            _ => 8,
        }
    }
}

impl From<i64> for Cell {
    fn from(value: i64) -> Self {
        Self::Big(Some(value))
    }
}

impl From<Option<i64>> for Cell {
    fn from(value: Option<i64>) -> Self {
        Self::Big(value)
    }
}

impl From<i32> for Cell {
    fn from(value: i32) -> Self {
        Self::Int(value)
    }
}

impl From<i16> for Cell {
    fn from(value: i16) -> Self {
        Self::Small(value)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<String> for Cell {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<String>> for Cell {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<u8>> for Cell {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<Option<Vec<u8>>> for Cell {
    fn from(value: Option<Vec<u8>>) -> Self {
        Self::Bytes(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_takes_an_array_a_column() {
        let filled = Filled { table: "t", columns: &[("id", Kind::Big), ("what", Kind::Text)] };
        assert_eq!(
            filled.sql(),
            "INSERT INTO t (id, what) SELECT * FROM unnest($1::BIGINT[], $2::TEXT[])"
        );
        let rows =
            [vec![1_i64.into(), None::<String>.into()], vec![2_i64.into(), "b".to_owned().into()]];
        let arrays = filled.arrays(&rows);
        let types: Vec<&Type> = arrays.iter().map(|(_, kind)| kind).collect();
        assert_eq!(types, [&Type::INT8_ARRAY, &Type::TEXT_ARRAY]);
        assert!(format!("{:?}", arrays[1].0).contains("[None, Some(\"b\")]"));
    }
}
