//! Objects as CSV (RFC 4180).

use std::collections::BTreeMap;

use serde_json::Value;

/// A line of titles and one line per object. Each field is a column, in the order in which fields are first seen; those of an object in it
/// have its name before theirs. Lists are JSON.
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
    let mut out = String::new();
    if !titles.is_empty() {
        line(&mut out, titles.iter().map(String::as_str));
    }
    for cells in lines {
        let mut row = vec![""; titles.len()];
        for (place, text) in &cells {
            row[*place] = text;
        }
        line(&mut out, row.into_iter());
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
    fn no_cell_is_a_formula() {
        let rows = [json!({ "=a": "=1+1", "b": "@SUM(1)", "c": "+1+1", "d": "-2+3", "e": -2.5, "f": "\t=1", "g": "a=1" })];
        assert_eq!(text(&rows), "'=a,b,c,d,e,f,g\r\n'=1+1,'@SUM(1),'+1+1,'-2+3,-2.5,'\t=1,a=1\r\n");
    }
}
