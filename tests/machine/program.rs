//! The static program needs no other file: no loader, no library, no configuration of the C library.

use std::fs;
use std::net::UdpSocket;
use std::process::Command;

use crate::chroot::{Chroot, static_program};
use crate::support::{eventually, janitor, run};

const KEY: &str = "a-key-of-the-administrator";

#[test]
fn it_has_no_interpreter_and_needs_no_library() {
    let read = |what: &str| {
        let done = Command::new("readelf").args([what, "--wide"]).arg(static_program()).output().expect("readelf");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    let segments = read("--program-headers");
    assert!(segments.contains(" LOAD ") && !segments.contains(" INTERP "), "{segments}");
    // A program that may be loaded at any address relocates itself; the section that says how must name no library.
    let dynamic = read("--dynamic");
    assert!(!dynamic.contains("(NEEDED)") && !dynamic.contains("(RUNPATH)"), "{dynamic}");
}

#[test]
fn it_runs_in_an_empty_root_and_resolves_names() {
    let root = janitor::new_path("empty");
    for dir in ["etc", "data"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    // By a program, because a file that this process has open for writing can't be executed.
    let copied = Command::new("cp").arg(static_program()).arg(root.join("bloom-runtime")).status().expect("cp");
    assert!(copied.success());
    fs::write(root.join("etc/hosts"), "127.0.0.1 by-file.example\n").unwrap();
    fs::write(root.join("etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let settings = [("HOST", "0.0.0.0"), ("DATA_DIR", "/data"), ("RUNTIME_API_KEY", KEY)];
    let chroot = Chroot::start(&root, &["/bloom-runtime", "serve"], &settings);
    run(async {
        eventually("the namespaces exist", || async { chroot.log().contains("listens on").then_some(()) }).await;
    });
    chroot.bring_up_loopback();
    let dns = chroot.bind_udp("127.0.0.1:53");
    std::thread::spawn(move || serve_names(&dns));
    let stats = |host: &str| {
        let server = format!("http://{host}:5000");
        chroot.run(&["/bloom-runtime", "stats"], &[("BLOOM_SERVER", &server), ("BLOOM_KEY", KEY)])
    };
    for host in ["127.0.0.1", "by-file.example", "by-dns.example"] {
        let done = stats(host);
        assert!(done.status.success(), "{host}: {done:?}");
    }
    let unknown = stats("unknown.example");
    assert!(!unknown.status.success(), "{unknown:?}");
}

/// Answers DNS queries: `by-dns.example` is 127.0.0.1, and no other name exists.
fn serve_names(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut query) {
        // The name begins after the header of 12 bytes and ends with an empty label; the type and the class follow, two bytes each.
        let Some(end) = query[12..length].iter().position(|byte| *byte == 0).map(|end| 12 + end + 5) else { continue };
        let question = &query[12..end];
        let is_known = question.starts_with(b"\x06by-dns\x07example\0");
        let is_ipv4 = question.ends_with(&[0, 1, 0, 1]);
        let mut answer = query[..2].to_vec();
        let status = if is_known { 0x80 } else { 0x83 };
        answer.extend([0x81, status, 0, 1, 0, u8::from(is_known && is_ipv4), 0, 0, 0, 0]);
        answer.extend(question);
        if is_known && is_ipv4 {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        let _ = socket.send_to(&answer, client);
    }
}
