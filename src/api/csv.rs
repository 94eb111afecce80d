//! Objects as CSV (RFC 4180).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A line of titles and one line per object. Each field is a column, in the order in which fields are first seen; those of an object in it
/// have its name before theirs: what is null there and an object elsewhere has no column of its own. Lists are JSON.
pub fn text(objects: &[Value]) -> String {
    let mut titles: Vec<String> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut lines: Vec<Vec<(usize, String)>> = Vec::new();
    for object in objects {
        let mut cells = Vec::new();
        flatten("", object, &mut |name, text| {
            let place = *places.entry(name.to_owned()).or_insert_with(|| {
                titles.push(name.to_owned());
                titles.len() - 1
            });
            cells.push((place, text));
        });
        lines.push(cells);
    }
    let filled: BTreeSet<usize> = lines.iter().flatten().filter(|(_, text)| !text.is_empty()).map(|(place, _)| *place).collect();
    let is_object = |name: &str| titles.iter().any(|title| title.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
    let shown: Vec<usize> = (0..titles.len()).filter(|place| filled.contains(place) || !is_object(&titles[*place])).collect();
    let mut out = String::new();
    if !shown.is_empty() {
        line(&mut out, shown.iter().map(|place| titles[*place].as_str()));
    }
    for cells in lines {
        let mut row = vec![""; titles.len()];
        for (place, text) in &cells {
            row[*place] = text;
        }
        line(&mut out, shown.iter().map(|place| row[*place]));
    }
    out
}

/// A cell's text: strings without quotes, numbers in digits, and the empty text for null.
pub fn cell_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn flatten(name: &str, value: &Value, cell: &mut impl FnMut(&str, String)) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&name, value, &mut *cell);
            }
        }
        value => cell(name, cell_text(value)),
    }
}

fn line<'a>(out: &mut String, cells: impl Iterator<Item = &'a str>) {
    for (i, cell) in cells.enumerate() {
        if i > 0 {
            out.push(',');
        }
        // Spreadsheets would execute what begins so (CWE-1236), and whoever names a label would command those of others. A negative number is one.
        let cell = &match cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err() {
            true => format!("'{cell}"),
            false => cell.to_owned(),
        };
        if cell.contains([',', '"', '\r', '\n']) {
            out.push_str(&format!("\"{}\"", cell.replace('"', "\"\"")));
        } else {
            out.push_str(cell);
        }
    }
    out.push_str("\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_separates_is_quoted() {
        let rows = [json!({ "a": "x,y", "b": { "c": "say \"hi\"", "d": null } }), json!({ "e": [1, 2], "a": "two\nlines" })];
        assert_eq!(text(&rows), "a,b.c,b.d,e\r\n\"x,y\",\"say \"\"hi\"\"\",,\r\n\"two\nlines\",,,\"[1,2]\"\r\n");
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn a_null_has_the_columns_of_the_objects_in_its_place() {
        let rows = [json!({ "id": 1, "failure": null, "model": null }), json!({ "id": 2, "failure": { "reason": "auth" }, "model": null })];
        assert_eq!(text(&rows), "id,model,failure.reason\r\n1,,\r\n2,,auth\r\n");
        assert_eq!(text(&rows[..1]), "id,failure,model\r\n1,,\r\n");
        let mixed = [json!({ "a": "x" }), json!({ "a": { "b": 1 } })];
        assert_eq!(text(&mixed), "a,a.b\r\nx,\r\n,1\r\n");
    }

    #[test]
    fn no_cell_is_a_formula() {
        let rows = [json!({ "=a": "=1+1", "b": "@SUM(1)", "c": "+1+1", "d": "-2+3", "e": -2.5, "f": "\t=1", "g": "a=1" })];
        assert_eq!(text(&rows), "'=a,b,c,d,e,f,g\r\n'=1+1,'@SUM(1),'+1+1,'-2+3,-2.5,'\t=1,a=1\r\n");
    }
}
