//! The backlog of the watch streams, for clients that read slowly. All streams share it and its limit, so a client that stops reading
//! costs no more memory than one that reads. It misses what was dropped, and gets the event `reset`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use axum::body::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use bloom_core::api_key::Owner;

/// Limit of the bytes of all pieces.
pub(crate) const MAX_BYTES: usize = 8 << 20;
/// Limit of the number of pieces: each costs memory besides its bytes.
const MAX_PIECES: usize = 1024;

/// A piece of the stream, and which parts of it are about tasks of submit and member keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub bytes: Bytes,
    owned: Arc<[Owned]>,
    is_for_all: bool,
}

/// A part of a piece, and whose task it is about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Owned {
    pub part: Range<usize>,
    /// The key that created the task, and its team.
    pub key: String,
    pub team: Option<String>,
}

impl Owned {
    fn is_of(&self, owner: &Owner) -> bool {
        match owner {
            Owner::Key(key) => self.key == *key,
            Owner::Team(team) => self.team.as_ref() == Some(team),
        }
    }
}

impl Piece {
    pub(crate) fn new(bytes: Bytes, owned: Vec<Owned>) -> Self {
        Self { bytes, owned: owned.into(), is_for_all: false }
    }

    /// A piece that every stream gets.
    pub(crate) fn for_all(bytes: Bytes) -> Self {
        Self { bytes, owned: Arc::default(), is_for_all: true }
    }

    /// The part of the piece that a stream of this owner gets; without an owner, all of it.
    pub(crate) fn for_owner(&self, owner: Option<&Owner>) -> Option<Bytes> {
        let Some(owner) = owner.filter(|_| !self.is_for_all) else { return Some(self.bytes.clone()) };
        let own: Vec<u8> =
            self.owned.iter().filter(|owned| owned.is_of(owner)).flat_map(|owned| &self.bytes[owned.part.clone()]).copied().collect();
        (!own.is_empty()).then(|| own.into())
    }
}

#[derive(Default)]
struct Kept {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// The number of the oldest piece kept. Pieces are numbered consecutively.
    oldest: u64,
    readers: usize,
}

impl Kept {
    fn next(&self) -> u64 {
        self.oldest + self.pieces.len() as u64
    }

    fn drop_oldest(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= piece.bytes.len();
            self.oldest += 1;
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Backlog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    kept: Mutex<Kept>,
    news: watch::Sender<()>,
}

/// Pieces were dropped before the reader got them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missed;

/// The position of one stream in the backlog.
pub(crate) struct Reader {
    backlog: Backlog,
    next: u64,
    news: watch::Receiver<()>,
}

impl Backlog {
    /// A reader of the pieces that are added from now on.
    pub(crate) fn reader(&self) -> Reader {
        let mut kept = self.kept();
        kept.readers += 1;
        Reader { backlog: self.clone(), next: kept.next(), news: self.0.news.subscribe() }
    }

    pub(crate) fn has_readers(&self) -> bool {
        self.kept().readers > 0
    }

    /// Adds a piece. A piece larger than [`MAX_BYTES`] would be dropped at once, so callers must not add one.
    pub(crate) fn push(&self, piece: Piece) {
        let mut kept = self.kept();
        if kept.readers == 0 {
            return;
        }
        kept.bytes += piece.bytes.len();
        kept.pieces.push_back(piece);
        while kept.bytes > MAX_BYTES || kept.pieces.len() > MAX_PIECES {
            kept.drop_oldest();
        }
        drop(kept);
        self.0.news.send_replace(());
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock()
    }
}

impl Reader {
    /// Waits for the next piece. After [`Missed`], the reader continues with the oldest piece kept.
    pub(crate) async fn next(&mut self) -> Result<Piece, Missed> {
        loop {
            self.news.mark_unchanged();
            {
                let kept = self.backlog.kept();
                if self.next < kept.oldest {
                    self.next = kept.oldest;
                    return Err(Missed);
                }
                if let Some(piece) = usize::try_from(self.next - kept.oldest).ok().and_then(|at| kept.pieces.get(at)) {
                    self.next += 1;
                    return Ok(piece.clone());
                }
            }
            // This can't fail: the sender lives as long as the backlog, which this reader holds.
            let _ = self.news.changed().await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.backlog.kept();
        kept.readers -= 1;
        // Without readers, no piece is needed.
        while kept.readers == 0 && !kept.pieces.is_empty() {
            kept.drop_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: usize) -> Piece {
        Piece::new(vec![b'x'; bytes].into(), Vec::new())
    }

    #[test]
    fn keys_get_their_own_parts_and_teams_those_of_their_keys() {
        let of = |part, key: &str, team: Option<&str>| Owned { part, key: key.into(), team: team.map(Into::into) };
        let owned = vec![of(0..2, "a", Some("t")), of(2..3, "b", Some("t")), of(3..4, "t", None), of(5..6, "a", None)];
        let piece = Piece::new("aabt.a".into(), owned);
        let check = |piece: &Piece, owner: Option<Owner>, expected: Option<&str>| {
            assert_eq!(piece.for_owner(owner.as_ref()).as_deref(), expected.map(str::as_bytes))
        };
        let key = |name: &str| Some(Owner::Key(name.into()));
        let team = |name: &str| Some(Owner::Team(name.into()));
        check(&piece, None, Some("aabt.a"));
        check(&piece, key("a"), Some("aaa"));
        check(&piece, key("b"), Some("b"));
        check(&piece, key("c"), None);
        check(&piece, team("t"), Some("aab"));
        check(&piece, team("a"), None);
        check(&Piece::for_all("reset".into()), key("c"), Some("reset"));
    }

    #[tokio::test]
    async fn a_slow_reader_misses_what_is_beyond_the_bytes() {
        let backlog = Backlog::default();
        let mut slow = backlog.reader();
        for _ in 0..20 {
            backlog.push(piece(1 << 20));
        }
        assert_eq!(slow.next().await, Err(Missed));
        for _ in 0..8 {
            assert_eq!(slow.next().await.map(|piece| piece.bytes.len()), Ok(1 << 20));
        }
        backlog.push(piece(1));
        assert_eq!(slow.next().await.map(|piece| piece.bytes.len()), Ok(1), "a gap is reported once");
    }

    #[tokio::test]
    async fn a_slow_reader_misses_what_is_beyond_the_pieces() {
        let backlog = Backlog::default();
        let mut slow = backlog.reader();
        for _ in 0..=MAX_PIECES {
            backlog.push(piece(1));
        }
        assert_eq!(backlog.kept().pieces.len(), MAX_PIECES);
        assert_eq!(slow.next().await, Err(Missed));
    }

    #[tokio::test]
    async fn nothing_is_kept_for_nobody() {
        let backlog = Backlog::default();
        backlog.push(piece(1));
        let (one, two) = (backlog.reader(), backlog.reader());
        backlog.push(piece(1));
        drop(one);
        assert_eq!(backlog.kept().bytes, 1);
        drop(two);
        let left = {
            let kept = backlog.kept();
            (kept.bytes, kept.pieces.len())
        };
        assert_eq!(left, (0, 0));
        // The numbering continues, so a new reader has no gap.
        let mut three = backlog.reader();
        backlog.push(piece(2));
        assert_eq!(three.next().await.map(|piece| piece.bytes.len()), Ok(2));
    }
}
