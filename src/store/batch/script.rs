//! Sends the statements of a batch together, because each round trip to the database delays the batch.
//!
//! On SQLite, a whole script is one text, including COMMIT. On PostgreSQL, the unordered statements and the last of the ordered ones
//! become one statement. The other ordered ones are sent one by one, because a slot must be released before another task takes it.

use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::conn::Conn;
use crate::sql::dialect::{Kind, Sql};

struct Part<'a> {
    sql: &'static Sql,
    args: Args<'a>,
}

#[derive(Default)]
pub(crate) struct Script<'a> {
    ordered: Vec<Part<'a>>,
    unordered: Vec<Part<'a>>,
}

impl<'a> Script<'a> {
    /// Adds a statement that runs after the ordered ones before it, and before all unordered ones.
    pub(crate) fn ordered(&mut self, sql: &'static Sql, args: Args<'a>) {
        self.ordered.push(Part { sql, args });
    }

    /// Adds a statement whose order does not matter, because it takes nothing that another statement of the batch releases.
    pub(crate) fn unordered(&mut self, sql: &'static Sql, args: Args<'a>) {
        self.unordered.push(Part { sql, args });
    }

    /// Runs the statements, and commits too if `may_commit` allows it and the database can do both at once. Returns whether it has
    /// committed.
    pub(crate) async fn run(mut self, conn: &mut Conn, may_commit: bool) -> Result<bool, Error> {
        match conn.kind() {
            Kind::Sqlite => {
                let parts = self.ordered.into_iter().chain(self.unordered);
                let (mut texts, args) = join(parts, Kind::Sqlite);
                if may_commit {
                    texts.push("COMMIT".to_owned());
                }
                match conn.execute_text(texts.join("; "), args).await {
                    Ok(()) => Ok(may_commit),
                    Err(Error::Unavailable(_, text) | Error::Disk(text)) if may_commit => Err(Error::CommitUnknown(text)),
                    Err(error) => Err(error),
                }
            }
            Kind::Postgres => {
                // The unordered statements take nothing that the last ordered one releases, so they can run together.
                let last = self.ordered.pop();
                for Part { sql, args } in self.ordered {
                    conn.execute(sql, args).await?;
                }
                let (texts, args) = join(last.into_iter().chain(self.unordered), Kind::Postgres);
                match texts.as_slice() {
                    [] => {}
                    [one] => conn.execute_text(one.clone(), args).await?,
                    [first @ .., last] => {
                        let with: Vec<String> = first.iter().enumerate().map(|(i, text)| format!("w{i} AS ({text})")).collect();
                        conn.execute_text(format!("WITH {} {last}", with.join(", ")), args).await?;
                    }
                }
                Ok(false)
            }
        }
    }
}

/// The texts of all parts, with their parameters numbered consecutively, and the arguments of all parts.
fn join<'a>(parts: impl IntoIterator<Item = Part<'a>>, kind: Kind) -> (Vec<String>, Args<'a>) {
    let mut texts = Vec::new();
    let mut all = Args::new();
    for Part { sql, args } in parts {
        texts.push(renumbered(sql.text(kind).as_str(), all.len()));
        all.append(args);
    }
    (texts, all)
}

/// Changes each `$n` to `$(n + by)`. Statements contain no other dollar signs.
fn renumbered(text: &str, by: usize) -> String {
    if by == 0 {
        return text.to_owned();
    }
    let mut pieces = text.split('$');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let number: usize = piece[..digits].parse().unwrap_or(0);
        out.push('$');
        out.push_str(&(number + by).to_string());
        out.push_str(&piece[digits..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::renumbered;

    #[test]
    fn parameters_are_numbered_through() {
        assert_eq!(renumbered("a = $1 AND b IN ($2, $10) OR $1", 3), "a = $4 AND b IN ($5, $13) OR $4");
    }
}
