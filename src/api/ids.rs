//! Parts of ids, by which people name tasks.

use uuid::Uuid;

/// Hex digits of an id.
const DIGITS: usize = 32;
/// The fewest digits that name a task. The look-up by the end of an id follows an index of this many digits.
pub const MIN_DIGITS: usize = 4;

/// The beginning or the end of an id: at least [`MIN_DIGITS`] hex digits, in lower case and without hyphens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPart(String);

impl IdPart {
    /// # Errors
    /// The text is not a part of an id; the error says why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).take(DIGITS + 1).collect();
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) || digits.len() > DIGITS {
            return Err("Expected hex digits of the beginning or the end of an id".into());
        }
        if digits.len() < MIN_DIGITS {
            return Err(format!("Too short: at least {MIN_DIGITS} hex digits of the beginning or the end of an id are wanted"));
        }
        Ok(Self(digits))
    }

    /// The digits, in lower case and without hyphens.
    pub fn digits(&self) -> &str {
        &self.0
    }

    /// The id, if this is all of it.
    pub fn whole(&self) -> Option<Uuid> {
        self.0.parse().ok().filter(|_| self.0.len() == DIGITS)
    }

    /// Whether the id, in any form, begins or ends with these digits.
    pub fn fits(&self, id: &str) -> bool {
        let id = id.replace('-', "").to_ascii_lowercase();
        id.starts_with(&self.0) || id.ends_with(&self.0)
    }

    /// The first and the last id that begins with these digits.
    pub fn beginning(&self) -> (Uuid, Uuid) {
        let filled = |with: &str| (self.0.clone() + &with.repeat(DIGITS - self.0.len())).parse().unwrap_or_default();
        (filled("0"), filled("f"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_ids() {
        let part = |text: &str| IdPart::parse(text).unwrap();
        assert_eq!(part("0190A0A0-0000").digits(), "0190a0a00000");
        let (first, last) = part("0190a").beginning();
        assert_eq!(first.to_string(), "0190a000-0000-0000-0000-000000000000");
        assert_eq!(last.to_string(), "0190afff-ffff-ffff-ffff-ffffffffffff");
        assert_eq!(part("0190a").whole(), None);
        let id = "0190a0a0-0000-7000-8000-00000000beef";
        assert_eq!(part(id).whole(), id.parse().ok());
        assert_eq!(part(&id.replace('-', "")).whole(), id.parse().ok());
        assert!(part("0190-A0A0-00").fits(id) && part("0000beef").fits(id) && part(id).fits(id) && !part("a0a0").fits(id));
        for wrong in ["", "abc", "xyzw", "0190a0a0-0000-7000-8000-00000000beef0", "é234", "ab c"] {
            assert!(IdPart::parse(wrong).is_err(), "{wrong}");
        }
    }
}
