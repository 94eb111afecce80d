//! The events of a run on the disk.

use super::*;
use crate::home::private_dir;

#[test]
fn a_record_goes_on_where_a_crash_cut_it() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RunDir::new(temp.path().join("run"));
    private_dir(dir.path()).unwrap();
    let mut log = EventLog::open(&dir, Uuid::nil(), Reserve::in_dir(temp.path())).unwrap();
    log.add(
        vec![(EventKind::Text, json!({"text": "a"})), (EventKind::Text, json!({"text": "b"}))],
        Position { start: 1, offset: 10, stderr: 0 },
        5,
    )
    .unwrap();
    let mut reader = log.reader().unwrap();
    let (events, end) = reader.batch().unwrap();
    assert_eq!(events.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [1, 2]);
    reader.sent(end);
    assert!(reader.batch().unwrap().0.is_empty());
    drop(log);
    File::options().append(true).open(dir.events()).unwrap().write_all(b"{\"event\": {\"se").unwrap();

    let mut log = EventLog::open(&dir, Uuid::nil(), Reserve::in_dir(temp.path())).unwrap();
    assert!(log.is_stored(1, 10) && !log.is_stored(1, 11) && !log.is_stored(2, 0));
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    log.add(vec![(EventKind::ToolUse, json!({"input": deep}))], Position { start: 1, offset: 12, stderr: 0 }, 6).unwrap();
    let (events, _) = reader.batch().unwrap();
    assert_eq!(events.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [3]);
    assert!(events[0].data.0.starts_with("{\"text\":") && is_readable(&events[0].data.0), "an event that is too deep becomes text");
}

/// Otherwise it, and all that follow it, would never be sent.
#[test]
fn the_largest_event_is_read_as_a_whole() {
    let temp = tempfile::tempdir().unwrap();
    let mut log = EventLog::open(&RunDir::new(temp.path().to_owned()), Uuid::nil(), Reserve::in_dir(temp.path())).unwrap();
    let around = json!({"name": ""}).to_string().len();
    let sizes = [MAX_DATA - around, MAX_DATA - around + 1, MAX_EVENT_BYTES - around];
    sizes.iter().for_each(|size| log.record(EventKind::Question, json!({"name": "n".repeat(*size)}), Ms::MAX));
    let (mut reader, mut read) = (log.reader().unwrap(), Vec::new());
    while let (events, end) = reader.batch().unwrap()
        && !events.is_empty()
    {
        read.extend(events.iter().map(|event| event.data.0.len()));
        reader.sent(end);
    }
    assert_eq!(read.len(), sizes.len());
    assert!(read[0] == MAX_DATA && read[1] < MAX_DATA && read[2] < MAX_DATA, "the others are cut: {read:?}");
}

#[test]
fn what_a_run_says_is_cut_and_its_end_is_told() {
    let temp = tempfile::tempdir().unwrap();
    let dir = RunDir::new(temp.path().to_owned());
    let open = || EventLog::open(&dir, Uuid::nil(), Reserve::in_dir(temp.path())).unwrap();
    let at = |offset| Position { start: 1, offset, stderr: 0 };
    let text = || (EventKind::Text, json!({"text": "x".repeat(200 << 10)}));
    let mut log = open();
    for n in 0..40 {
        log.add((0..10).map(|_| text()).collect(), at(n), 5).unwrap();
    }
    assert!(std::fs::metadata(dir.events()).unwrap().len() <= CONTENT.bytes + (1 << 10));
    drop(log);
    let mut log = open();
    log.add(vec![text(), (EventKind::Usage, json!({"n": 1}))], at(50), 6).unwrap();
    log.phase("ended", json!({}));
    let mut reader = log.reader().unwrap();
    let mut last = Vec::new();
    loop {
        let (events, end) = reader.batch().unwrap();
        if events.is_empty() {
            break;
        }
        last.extend(events.into_iter().map(|event| (event.seq.0, event.kind, event.data.0.clone())));
        last.drain(..last.len().saturating_sub(4));
        reader.sent(end);
    }
    let kinds: Vec<_> = last.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds, [EventKind::Text, EventKind::Lifecycle, EventKind::Usage, EventKind::Lifecycle], "once, also after a restart");
    assert!(last.windows(2).all(|two| two[0].0 + 1 == two[1].0), "without a gap");
    assert!(last[1].2.contains(CUT) && last[3].2.contains("ended"));
}

#[test]
fn lines_come_whole() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out");
    let mut writer = File::create(&path).unwrap();
    let mut tail = Tail::open(&path).unwrap();
    let mut lines = Vec::new();
    for piece in ["on", "e\r\ntw", "o\n\nthr", "ee"] {
        writer.write_all(piece.as_bytes()).unwrap();
        while tail.read(|line, end| lines.push((line.to_owned(), end))).unwrap() {}
    }
    assert_eq!(lines, [("one".to_owned(), 5), ("two".to_owned(), 9), (String::new(), 10)]);
    assert_eq!((tail.rest().as_deref(), tail.rest()), (Some("three"), None));
}

#[test]
fn a_line_that_is_too_long_leaves_a_gap() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out");
    let mut writer = File::create(&path).unwrap();
    writer.set_len(MAX_LINE as u64 + 2 * PIECE).unwrap();
    writer.seek(io::SeekFrom::End(0)).unwrap();
    writer.write_all(b"\nend\n").unwrap();
    let mut tail = Tail::open(&path).unwrap();
    let mut lines = Vec::new();
    while tail.read(|line, _| lines.push(line.to_owned())).unwrap() {}
    assert_eq!((lines, tail.has_gap), (vec!["end".to_owned()], true));
}
