//! A server on SQLite: its disk, its backups, its control plane, its object store, its certificate.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;

use super::prometheus::{ADMIN_KEY, Prometheus, READ_KEY};
use crate::support::certificates::Authority;
use crate::support::minio::Minio;
use crate::support::stub::{Reply, Stub};
use crate::support::{Database, Server, janitor};

/// Runs the server with its data and its backups on disks of 64 MiB, mounted for this process only: the alerts must not depend on
/// how full the machine's disk is. In place of the directory for backups is a file. Without root rights, it maps its user to root.
const SMALL_DISKS: &str = r#"
    [ "$(id -u)" = 0 ] || own=--map-root-user
    mkdir -p "$DATA_DIR" "${BACKUP_DIR%/*}" && exec unshare --mount $own sh -c '
        for dir in "$DATA_DIR" "${BACKUP_DIR%/*}"; do mount -t tmpfs -o size=64m tmpfs "$dir" || exit; done
        echo "a file in its place" > "$BACKUP_DIR" && exec "$0" "$@"' "$0" "$@""#;

pub async fn what_it_depends_on(prometheus: &Prometheus) {
    const JOB: &str = "disk";
    let backups = janitor::new_path("disk").join("backups");
    let control_plane = Stub::start().await;
    let fail = |path: &str| control_plane.always(path, Reply::new(500, "{}"));
    ["/agents", "/projects"].into_iter().for_each(fail);
    let minio = Minio::start().await;
    let server = Minio::used_by(Server::on(Database::Sqlite), &minio.url())
        .env("BACKUP_DIR", backups.display())
        .env("BACKUP_EVERY_SECONDS", 3)
        .env("MEMBRIDGE_SERVER_URL", &control_plane.url)
        .env("MEMBRIDGE_ADMIN_KEY", "the-key-of-the-control-plane")
        .env("WORKER_SYNC_SECONDS", 1)
        .env("RUNTIME_API_KEY", ADMIN_KEY)
        .env("RUNTIME_READ_KEY", READ_KEY)
        .through(SMALL_DISKS)
        .start();
    prometheus.scrapes(JOB, &[&server]);

    // The disks are visible to the server only, so the test goes through the server's root directory.
    let inside = |path: &Path| PathBuf::from(format!("/proc/{}/root{}", server.pid(), path.display()));
    let filler = inside(&server.data_dir().join("filler"));
    fs::File::create(&filler).unwrap().write_all(&vec![0; 60 << 20]).unwrap();
    minio.kill();
    let api = server.with_key(ADMIN_KEY);
    // Each takes about a second, because the server asks again.
    let ask = async || {
        let answers = join_all((0..20).map(|_| api.get("/api/membridge/projects"))).await;
        answers.into_iter().for_each(|answer| drop(answer.error(500)));
    };
    tokio::join!(
        prometheus.fires(JOB, "BloomDiskNearlyFull"),
        prometheus.fires(JOB, "BloomBackupTooOld"),
        prometheus.fires(JOB, "BloomMembridgeDown"),
        prometheus.fires(JOB, "BloomObjectStoreFails"),
        prometheus.fires_while(JOB, "BloomServerErrors", ask),
    );

    minio.start_again().await;
    fs::remove_file(&filler).unwrap();
    fs::remove_file(inside(&backups)).unwrap();
    control_plane.always("/agents", Reply::new(200, "[]"));
    for alert in ["BloomDiskNearlyFull", "BloomBackupTooOld", "BloomMembridgeDown", "BloomObjectStoreFails", "BloomServerErrors"] {
        prometheus.resolves(JOB, alert).await;
    }
}

/// With an expired certificate nobody can connect, so it is missed as a server that is down. It is told before.
pub async fn certificate(prometheus: &Prometheus, authority: &Authority) {
    const JOB: &str = "https";
    let dir = janitor::new_path("tls");
    authority.issue_for("expired", -1).install(&dir);
    let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
    let server = Server::on(Database::Sqlite).env("TLS_CERT_FILE", certificate.display()).env("TLS_KEY_FILE", key.display()).start();
    prometheus.scrapes(JOB, &[&server]);
    prometheus.fires(JOB, "BloomRuntimeDown").await;
    authority.issue_for("short", 10).install(&dir);
    prometheus.resolves(JOB, "BloomRuntimeDown").await;
    prometheus.fires(JOB, "BloomCertificateExpires").await;
    authority.issue_for("long", 90).install(&dir);
    prometheus.resolves(JOB, "BloomCertificateExpires").await;
}
