//! Splits a JSON array into its rows while it arrives in pieces, so that at most one row is kept as text.

#[derive(Default)]
pub(crate) struct Rows {
    row: Vec<u8>,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Rows {
    /// Returns the rows that end in this piece.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut ended = Vec::new();
        for &byte in piece {
            if self.in_string {
                self.row.push(byte);
                (self.in_string, self.is_escaped) = match byte {
                    _ if self.is_escaped => (true, false),
                    b'\\' => (true, true),
                    b'"' => (false, false),
                    _ => (true, false),
                };
                continue;
            }
            let was = self.depth;
            match byte {
                b'"' => self.in_string = true,
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            let is_in_row = if byte == b'[' || byte == b'{' { was >= 1 } else { was >= 2 || (was == 1 && byte != b',' && byte != b']') };
            if is_in_row {
                self.row.push(byte);
            } else if !self.row.trim_ascii().is_empty() {
                ended.push(std::mem::take(&mut self.row));
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_wherever_the_pieces_end() {
        let text = r#"[{"a":"x,]}\"[","b":[1,{"c":2}]}, {} ,7]"#;
        for size in [1, 2, 3, 7, text.len()] {
            let mut rows = Rows::default();
            let found: Vec<_> = text.as_bytes().chunks(size).flat_map(|piece| rows.take(piece)).collect();
            let found: Vec<_> = found.iter().map(|row| str::from_utf8(row).unwrap().trim()).collect();
            assert_eq!(found, [r#"{"a":"x,]}\"[","b":[1,{"c":2}]}"#, "{}", "7"], "{size}");
        }
        assert!(Rows::default().take(b"[]").is_empty());
    }
}
