//! A real API server with an etcd of its own, on loopback.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, ResourceExt};
use serde::Deserialize as _;
use serde::de::DeserializeOwned;

use crate::support::janitor::{self, AtTheEnd, bound, free_port, new_path};
use crate::support::server::{BINARY, Plan};
use crate::support::{Database, Server, eventually, unique};

const ADMIN_TOKEN: &str = "admin-token";
const SERVICE_ACCOUNT: &str = "bloom-runtime";

/// The cluster that tests share; each uses a namespace of its own.
pub async fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    static STARTED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    let cluster = SHARED.get_or_init(Cluster::start);
    STARTED.get_or_init(|| cluster.set_up()).await;
    cluster
}

pub struct Cluster {
    dir: PathBuf,
    port: u16,
    etcd: Mutex<Option<Child>>,
    api_server: Mutex<Option<Child>>,
}

/// The directory of the programs, which `tests/run kubernetes` builds.
fn program(name: &str) -> PathBuf {
    let dir = std::env::var_os("KUBERNETES_BIN").expect("KUBERNETES_BIN: run tests/run kubernetes");
    Path::new(&dir).join(name)
}

fn start(mut command: Command, log: PathBuf) -> Child {
    let log = fs::File::create(log).expect("a log");
    command.stdout(log.try_clone().expect("a log")).stderr(log);
    janitor::spawn(command).expect("a program of Kubernetes starts")
}

impl Cluster {
    /// Starts etcd and the API server, without waiting for them.
    pub fn start() -> Self {
        // Fails only if a provider was installed before, which can be used as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = new_path("kubernetes");
        fs::create_dir(&dir).expect("a directory");
        // kubectl finds its plugin by the name of the program.
        fs::create_dir(dir.join("bin")).expect("a directory");
        symlink(program("kubectl"), dir.join("bin/kubectl")).expect("kubectl");
        symlink(BINARY, dir.join("bin/kubectl-bloom")).expect("the plugin");
        let key = dir.join("service-account.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").stderr(Stdio::null()).status();
        assert!(made.expect("openssl").success());
        fs::write(dir.join("tokens.csv"), format!("{ADMIN_TOKEN},admin,admin,system:masters\n")).expect("the tokens");
        let (clients, peers) = (free_port(), free_port());
        let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let mut etcd = bound(&program("etcd"), None, AtTheEnd::Kill);
        etcd.arg("--data-dir").arg(dir.join("etcd")).args(["--unsafe-no-fsync", "--log-level=error", "--name=one"]);
        etcd.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        etcd.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("one={peers}")]);
        let etcd = start(etcd, dir.join("etcd.log"));
        fs::write(dir.join("etcd.url"), clients).expect("the address of etcd");
        let cluster = Self { dir, port: free_port(), etcd: Mutex::new(Some(etcd)), api_server: Mutex::default() };
        cluster.start_api_server();
        cluster
    }

    pub fn start_api_server(&self) {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let mut command = bound(&program("kube-apiserver"), None, AtTheEnd::Kill);
        command.args([
            format!("--etcd-servers={}", fs::read_to_string(path("etcd.url")).expect("the address of etcd")),
            format!("--secure-port={}", self.port),
            format!("--cert-dir={}", path("certificates")),
            format!("--service-account-key-file={}", path("service-account.key")),
            format!("--service-account-signing-key-file={}", path("service-account.key")),
            format!("--token-auth-file={}", path("tokens.csv")),
        ]);
        command.args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
        ]);
        *self.api_server.lock().expect("the API server") = Some(start(command, self.dir.join("kube-apiserver.log")));
    }

    /// Kills the API server; etcd keeps what was stored.
    pub fn kill_api_server(&self) {
        let mut child = self.api_server.lock().expect("the API server").take().expect("a running API server");
        child.kill().expect("it can be killed");
        child.wait().expect("its end");
    }

    pub fn signal_api_server(&self, name: &str) {
        janitor::signal(self.api_server.lock().expect("the API server").as_ref().expect("a running API server").id(), name);
    }

    /// Waits until the API server is ready, and installs the custom resources and the roles.
    pub async fn set_up(&self) {
        self.install_roles().await;
        self.install_resources().await;
    }

    pub async fn install_roles(&self) {
        self.is_ready().await;
        let roles: Api<ClusterRole> = Api::all(self.admin().await);
        roles.create(&PostParams::default(), &rbac::<ClusterRole>("ClusterRole")).await.expect("the cluster role");
    }

    pub async fn install_resources(&self) {
        let client = self.admin().await;
        let crds: Api<CustomResourceDefinition> = Api::all(client);
        for crd in bloom_operator::crds::all().expect("the custom resources") {
            let name = crd.name_any();
            crds.create(&PostParams::default(), &crd).await.expect("a valid custom resource");
            await_condition(crds.clone(), &name, conditions::is_crd_established()).await.expect("it is served");
        }
    }

    /// Ends both programs.
    pub fn end(&self) {
        for process in [&self.api_server, &self.etcd] {
            if let Some(mut child) = process.lock().expect("a process").take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Makes the schema of LLMTasks allow labels of any type.
    pub async fn open_schema(&self) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin().await);
        let name = "llmtasks.bloom-runtime.dev";
        let crd = crds.get(name).await.expect("the custom resource");
        let mut open = serde_json::to_value(&crd).expect("a custom resource");
        let spec = open.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").expect("the spec's schema");
        spec["properties"]["labels"] = serde_json::json!({ "x-kubernetes-preserve-unknown-fields": true });
        spec.as_object_mut().expect("a schema").remove("x-kubernetes-validations");
        self.replace_schema(serde_json::from_value(open).expect("a custom resource")).await;
    }

    /// Makes the schema of LLMTasks as it was.
    pub async fn close_schema(&self) {
        let crds = bloom_operator::crds::all().expect("the custom resources");
        self.replace_schema(crds.into_iter().next().expect("that of LLMTasks")).await;
    }

    async fn replace_schema(&self, crd: CustomResourceDefinition) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin().await);
        let name = crd.name_any();
        let version = crds.get(&name).await.expect("the custom resource").metadata.resource_version;
        let metadata = ObjectMeta { resource_version: version, ..crd.metadata };
        let crd = CustomResourceDefinition { metadata, spec: crd.spec, status: None };
        crds.replace(&name, &PostParams::default(), &crd).await.expect("it is replaced");
    }

    pub async fn is_ready(&self) {
        let url = format!("https://127.0.0.1:{}/readyz", self.port);
        let client = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build();
        let client = client.expect("a client");
        eventually("the API server is ready", || async {
            let answer = client.get(&url).bearer_auth(ADMIN_TOKEN).send().await;
            answer.is_ok_and(|answer| answer.status().is_success()).then_some(())
        })
        .await;
    }

    pub async fn admin(&self) -> Client {
        self.client(ADMIN_TOKEN).await
    }

    async fn client(&self, token: &str) -> Client {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig(token, "default")).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("its configuration");
        Client::try_from(config).expect("a client")
    }

    fn kubeconfig(&self, token: &str, namespace: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, \
            clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}], \
            users: [{{name: u, user: {{token: '{token}'}}}}], \
            contexts: [{{name: c, context: {{cluster: c, user: u, namespace: '{namespace}'}}}}]}}",
            self.port,
            self.dir.join("certificates/apiserver.crt").display(),
        )
    }

    /// A new namespace with the service account of an operator, which may do there what its manifests allow.
    pub async fn namespace(&'static self) -> Tenant {
        let (client, name) = (self.admin().await, unique("team"));
        let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let create = PostParams::default();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&create, &Namespace { metadata: named(&name), ..Namespace::default() }).await.expect("a namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
        let account = ServiceAccount { metadata: named(SERVICE_ACCOUNT), ..ServiceAccount::default() };
        accounts.create(&create, &account).await.expect("a service account");
        let role = rbac::<Role>("Role");
        Api::<Role>::namespaced(client.clone(), &name).create(&create, &role).await.expect("the role");
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &name);
        for (kind, role) in [("ClusterRole", rbac::<ClusterRole>("ClusterRole").name_any()), ("Role", role.name_any())] {
            let binding = RoleBinding {
                metadata: named(&format!("operator-{}", kind.to_lowercase())),
                role_ref: RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: kind.into(), name: role },
                subjects: Some(vec![subject(&name)]),
            };
            bindings.create(&create, &binding).await.expect("a binding");
        }
        let spec = TokenRequestSpec { audiences: vec!["https://kubernetes.default.svc".into()], ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let token = accounts.create_token_request(SERVICE_ACCOUNT, &create, &request).await.expect("a token");
        let kubeconfig = self.dir.join(format!("{name}.kubeconfig"));
        let token = token.status.expect("a token").token;
        fs::write(&kubeconfig, self.kubeconfig(&token, &name)).expect("the kubeconfig");
        let admin = self.dir.join(format!("{name}-admin.kubeconfig"));
        fs::write(&admin, self.kubeconfig(ADMIN_TOKEN, &name)).expect("the kubeconfig");
        Tenant { client, name, kubeconfig, admin }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// The service account of the operator in this namespace.
fn subject(namespace: &str) -> Subject {
    Subject { kind: "ServiceAccount".into(), name: SERVICE_ACCOUNT.into(), namespace: Some(namespace.to_owned()), ..Subject::default() }
}

/// The object of this kind in the operator's manifests.
fn rbac<K: DeserializeOwned>(kind: &str) -> K {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/kubernetes/operator-rbac.yaml");
    let text = fs::read_to_string(path).expect("the manifests");
    let objects = serde_norway::Deserializer::from_str(&text).map(|object| serde_json::Value::deserialize(object).expect("an object"));
    let object = objects.into_iter().find(|object| object["kind"] == kind).expect("an object of this kind");
    serde_json::from_value(object).expect("an object that can be read")
}

/// A namespace of one test.
pub struct Tenant {
    /// As administrator.
    pub client: Client,
    pub name: String,
    /// Of the operator's service account.
    kubeconfig: PathBuf,
    /// For kubectl, as administrator.
    admin: PathBuf,
}

impl Tenant {
    /// A server whose operator serves this namespace, with the rights of its service account.
    pub fn server(&self, database: Database) -> Plan {
        self.with_operator(Server::on(database), "operator-0")
    }

    /// Turns the operator of a server on.
    pub fn with_operator(&self, plan: Plan, pod: &str) -> Plan {
        plan.env("OPERATOR", true)
            .env("OPERATOR_NAMESPACES", &self.name)
            .env("POD_NAMESPACE", &self.name)
            .env("POD_NAME", pod)
            .env("KUBECONFIG", self.kubeconfig.display())
            .env("LOG_LEVEL", "info,bloom_operator=debug")
    }

    /// Binds the operator's ClusterRole in all namespaces.
    pub async fn may_do_its_work_everywhere(&self) {
        let binding = ClusterRoleBinding {
            metadata: ObjectMeta { name: Some(format!("operator-{}", self.name)), ..ObjectMeta::default() },
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".into(),
                kind: "ClusterRole".into(),
                name: rbac::<ClusterRole>("ClusterRole").name_any(),
            },
            subjects: Some(vec![subject(&self.name)]),
        };
        let bindings: Api<ClusterRoleBinding> = Api::all(self.client.clone());
        bindings.create(&PostParams::default(), &binding).await.expect("a binding");
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Runs kubectl in this namespace. Returns its output if it succeeds, else the text of its error.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        self.call(Command::new(program("kubectl")).args(arguments), input)
    }

    /// Runs a program that takes the cluster, the namespace and the rights of an administrator from the kubeconfig.
    pub fn call(&self, command: &mut Command, input: &str) -> Result<String, String> {
        use std::io::Write as _;
        let dir = self.admin.parent().expect("a directory");
        command.env_clear().env("KUBECONFIG", &self.admin).env("HOME", dir).env("PATH", dir.join("bin"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
        child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("its end");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

/// The time limit of waiting with kubectl.
pub const PATIENCE: Duration = Duration::from_secs(180);
