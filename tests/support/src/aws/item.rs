//! What DynamoDB takes as an item.

use super::faults::Refusal;
use serde_json::{Map, Value};

/// Bytes of an item, names counted.
const BYTES: usize = 400 * 1024;
/// Bytes of a partition key.
const PARTITION_KEY: usize = 2_048;
/// Bytes of a sort key.
const SORT_KEY: usize = 1_024;
/// Levels of lists and maps.
const LEVELS: usize = 32;

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::sender("ValidationException", what)
}

/// The keys of an item or of a `Key`.
pub(super) fn key(item: &Map<String, Value>) -> Result<(String, String), Refusal> {
    let part = |name: &str, limit: usize| {
        let value = item.get(name).and_then(|v| v["S"].as_str()).ok_or_else(|| {
            invalid(format!(
                "One or more parameter values were invalid: Missing the key {name} in the item"
            ))
        })?;
        if value.is_empty() {
            return Err(invalid(format!(
                "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty string value. Key: {name}"
            )));
        }
        if value.len() > limit {
            return Err(invalid(format!(
                "One or more parameter values were invalid: Size of {name} has exceeded the maximum size limit of {limit} bytes"
            )));
        }
        Ok(value.to_owned())
    };
    Ok((part("pk", PARTITION_KEY)?, part("sk", SORT_KEY)?))
}

/// Size, depth, and the form of every value.
pub(super) fn check(item: &Map<String, Value>) -> Result<(), Refusal> {
    let mut bytes = 0;
    for (name, value) in item {
        if name.is_empty() || name.len() > 65_535 {
            return Err(invalid("an attribute name of no or too many bytes"));
        }
        bytes += name.len() + value_size(value, 0)?;
    }
    if bytes > BYTES {
        return Err(invalid("Item size has exceeded the maximum allowed size"));
    }
    Ok(())
}

/// The size of one attribute value, by the rules of the developer guide.
pub(super) fn value_size(value: &Value, level: usize) -> Result<usize, Refusal> {
    let typed = value.as_object().filter(|m| m.len() == 1).and_then(|m| m.iter().next());
    let (kind, inner) = typed.ok_or_else(|| {
        invalid(
            "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
        )
    })?;
    let deeper = || {
        if level >= LEVELS {
            return Err(invalid(
                "Nesting Levels have exceeded supported limits: Attributes cannot have more than 32 levels of nesting",
            ));
        }
        Ok(level + 1)
    };
    match (kind.as_str(), inner) {
        ("S", Value::String(text)) => Ok(text.len()),
        ("N", Value::String(number)) => number_size(number),
        ("BOOL", Value::Bool(_)) | ("NULL", Value::Bool(true)) => Ok(1),
        ("L", Value::Array(items)) => {
            let level = deeper()?;
            items.iter().try_fold(3, |sum, item| Ok(sum + 1 + value_size(item, level)?))
        }
        ("M", Value::Object(members)) => {
            let level = deeper()?;
            members.iter().try_fold(3, |sum, (name, item)| {
                Ok(sum + 1 + name.len() + value_size(item, level)?)
            })
        }
        _ => Err(invalid(format!("the stub takes no attribute value of type {kind} like this"))),
    }
}

/// Up to 38 significant digits, magnitudes from 1E-130 to 9.99E+125.
fn number_size(text: &str) -> Result<usize, Refusal> {
    let bad = || invalid(format!("The parameter cannot be converted to a numeric value: {text}"));
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent: i64 = exponent.parse().map_err(|_| bad())?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let significant = digits.trim_matches('0').len();
    if significant == 0 {
        return Ok(1);
    }
    if significant > 38 {
        return Err(invalid("Attempting to store more than 38 significant digits in a Number"));
    }
    let digits_before = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let magnitude = digits_before(whole.len()) - digits_before(leading) - 1 + exponent;
    if magnitude > 125 {
        return Err(invalid(
            "Number overflow. Attempting to store a number with magnitude larger than supported range",
        ));
    }
    if magnitude < -130 {
        return Err(invalid(
            "Number underflow. Attempting to store a number with magnitude smaller than supported range",
        ));
    }
    Ok(significant.div_ceil(2) + 1 + usize::from(text.starts_with('-')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn number(text: &str) -> bool {
        value_size(&json!({"N": text}), 0).is_ok()
    }

    #[test]
    fn numbers_are_taken_to_38_digits_and_the_documented_exponents() {
        for good in
            ["0", "-0", "1", "-1.50", "9007199254740993", "1e125", "9.99e125", "1e-130", "0.1e126"]
        {
            assert!(number(good), "{good}");
        }
        assert!(number(&"9".repeat(38)) && number(&format!("{}000", "9".repeat(38))));
        for bad in ["", "NaN", "1e126", "1e-131", "0x1", "1.2.3", "--1"] {
            assert!(!number(bad), "{bad}");
        }
        assert!(!number(&"9".repeat(39)));
    }

    #[test]
    fn lists_and_maps_may_be_32_levels_deep() {
        let deep = |levels| (0..levels).fold(json!({"S": "x"}), |inner, _| json!({"L": [inner]}));
        assert!(value_size(&deep(32), 0).is_ok());
        assert!(value_size(&deep(33), 0).is_err());
    }

    #[test]
    fn an_item_ends_at_400_kib_with_names_counted() {
        let item = |n: usize| json!({"a": {"S": "x".repeat(n)}}).as_object().cloned().unwrap();
        assert!(check(&item(400 * 1024 - 1)).is_ok());
        assert!(check(&item(400 * 1024)).is_err());
    }

    #[test]
    fn keys_have_limits_of_their_own() {
        let with = |pk: &str, sk: &str| {
            key(json!({"pk": {"S": pk}, "sk": {"S": sk}}).as_object().unwrap()).is_ok()
        };
        assert!(with(&"p".repeat(2048), &"s".repeat(1024)));
        assert!(!with(&"p".repeat(2049), "s") && !with("p", &"s".repeat(1025)) && !with("", "s"));
    }
}
