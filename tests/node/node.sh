#!/usr/bin/env bash
# A whole Kubernetes node. It runs as the first process of namespaces of its own (processes, mounts, network, host name), so that all that
# it starts ends with it and nothing leaves the machine. It ends when its standard input is closed.
#
#   node.sh DIRECTORY CGROUP SNAPSHOTTER      logs and state are in DIRECTORY
#
# The programs of Kubernetes, containerd, runc and CoreDNS must be in PATH.
set -euo pipefail
dir="$1" cgroup="$2" snapshotter="$3"
address=192.0.2.10 services=10.96.0.0/24 dns=10.96.0.10 pods=10.88.0.0/24
hostname node

# Programs keep their state in /run and /var, and the kubelet sets limits of the whole machine: here, each finds its own.
mkdir -p "$dir"/{run,var/lib,var/log,cni,sysctl}
mount --bind "$dir/var" /var
mount --bind "$dir/run" /run
ln -s /run /var/run
own_sysctl() { echo "$2" >"$dir/sysctl/${1//\//-}"; mount --bind "$dir/sysctl/${1//\//-}" "/proc/sys/$1"; }
own_sysctl vm/overcommit_memory 1
own_sysctl vm/panic_on_oom 0
own_sysctl kernel/panic 10
own_sysctl kernel/panic_on_oops 1
own_sysctl kernel/keys/root_maxkeys 1000000
own_sysctl kernel/keys/root_maxbytes 25000000

# The control group of the node in each hierarchy: the kubelet puts those of all pods below it.
findmnt --raw --noheadings --output TARGET --types cgroup,cgroup2 | while read -r hierarchy; do
  mkdir "$hierarchy/$cgroup"
  for setting in cpuset.cpus cpuset.mems; do
    [ ! -e "$hierarchy/$setting" ] || cat "$hierarchy/$setting" >"$hierarchy/$cgroup/$setting"
  done
done

# A network that has no way out: both ends of its only cable are in here.
ip link set lo up
ip link add node0 type veth peer name node1
ip address add "$address/24" dev node0
ip link set node0 up
ip link set node1 up
ip route add default dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

in_background() { # NAME COMMAND...
  local log="$dir/$1.log"
  shift
  "$@" >"$log" 2>&1 </dev/null &
}

volume() { # NAME: a directory of the node that a pod can claim
  mkdir -p "/var/lib/volumes/$1"
  cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: { name: $1 }
spec:
  capacity: { storage: 20Gi }
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: { path: /var/lib/volumes/$1 }
  nodeAffinity:
    required: { nodeSelectorTerms: [{ matchExpressions: [{ key: kubernetes.io/hostname, operator: In, values: [node] }] }] }
YAML
}

in_background etcd etcd --data-dir "$dir/etcd" --unsafe-no-fsync --log-level=error

# Each component has the rights of its own user.
openssl genrsa -out "$dir/service-account.key" 2048 2>/dev/null
cat >"$dir/tokens.csv" <<CSV
admin,admin,admin,system:masters
controllers,system:kube-controller-manager,controllers
scheduler,system:kube-scheduler,scheduler
proxy,system:kube-proxy,proxy
node,system:node:node,node,system:nodes
dns,dns,dns
CSV
for user in admin controllers scheduler proxy node dns; do
  cat >"$dir/$user.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: node
clusters: [{ name: node, cluster: { server: "https://$address:6443", certificate-authority: $dir/certificates/apiserver.crt } }]
users: [{ name: $user, user: { token: $user } }]
contexts: [{ name: node, context: { cluster: node, user: $user } }]
YAML
done
in_background kube-apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$address" \
  --cert-dir="$dir/certificates" --token-auth-file="$dir/tokens.csv" --authorization-mode=Node,RBAC --allow-privileged=true \
  --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range="$services" \
  --service-account-key-file="$dir/service-account.key" --service-account-signing-key-file="$dir/service-account.key" \
  --kubelet-preferred-address-types=InternalIP

cat >"$dir/containerd.toml" <<TOML
version = 3

[plugins.'io.containerd.cri.v1.images']
  snapshotter = '$snapshotter'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'localhost/pause:1'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni']
    conf_dir = '$dir/cni'

[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = 'linux'
  snapshotter = '$snapshotter'
TOML
# Each pod has a cable of its own to the node, so that its packets to services pass the node's rules both ways.
cat >"$dir/cni/10-pods.conflist" <<JSON
{ "cniVersion": "1.0.0", "name": "pods", "plugins": [
  { "type": "ptp", "ipam": { "type": "host-local", "ranges": [[{ "subnet": "$pods" }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
  { "type": "portmap", "capabilities": { "portMappings": true } } ] }
JSON
in_background containerd containerd --config "$dir/containerd.toml"

: >"$dir/resolv.conf"
cat >"$dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDNS: [$dns]
clusterDomain: cluster.local
resolvConf: $dir/resolv.conf
# Whether the machine's disk is nearly full is not what is tested here.
evictionHard: { nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%" }
imageGCHighThresholdPercent: 100
YAML
cat >"$dir/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: node
clusterCIDR: $pods
clientConnection: { kubeconfig: $dir/proxy.kubeconfig }
conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s }
YAML
cat >"$dir/Corefile" <<CORE
.:53 {
  bind $address
  errors
  ready 127.0.0.1:8181
  kubernetes cluster.local {
    kubeconfig $dir/dns.kubeconfig
  }
}
CORE

# The API server makes its certificate, which all others read, when it starts.
for _ in {1..600}; do
  kubectl --kubeconfig "$dir/admin.kubeconfig" get --raw /readyz >"$dir/ready.log" 2>&1 && break
  sleep 0.1
done
in_background kube-controller-manager kube-controller-manager --kubeconfig="$dir/controllers.kubeconfig" --leader-elect=false \
  --use-service-account-credentials --service-account-private-key-file="$dir/service-account.key" \
  --root-ca-file="$dir/certificates/apiserver.crt" --authentication-skip-lookup --controllers='*,-nodeipam'
in_background kube-scheduler kube-scheduler --kubeconfig="$dir/scheduler.kubeconfig" --leader-elect=false --authentication-skip-lookup
in_background kubelet kubelet --config="$dir/kubelet.yaml" --kubeconfig="$dir/node.kubeconfig" --hostname-override=node --node-ip="$address"
in_background kube-proxy kube-proxy --config="$dir/proxy.yaml"
kubectl --kubeconfig "$dir/admin.kubeconfig" apply --filename - >"$dir/objects.log" 2>&1 <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: { name: dns }
rules:
  - { apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch] }
  - { apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: dns }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: dns }
subjects: [{ kind: User, name: dns, apiGroup: rbac.authorization.k8s.io }]
---
apiVersion: v1
kind: Service
metadata: { name: kube-dns, namespace: kube-system }
spec:
  clusterIP: $dns
  ports: [{ name: dns, port: 53, protocol: UDP }, { name: dns-tcp, port: 53, protocol: TCP }]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: kube-dns, namespace: kube-system, labels: { kubernetes.io/service-name: kube-dns } }
addressType: IPv4
ports: [{ name: dns, port: 53, protocol: UDP }, { name: dns-tcp, port: 53, protocol: TCP }]
endpoints: [{ addresses: ["$address"], conditions: { ready: true } }]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: local, annotations: { storageclass.kubernetes.io/is-default-class: "true" } }
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
$(for name in one two three; do volume "$name"; done)
YAML
in_background coredns coredns -conf "$dir/Corefile"

# Closed by the test, or by the kernel when the test is killed. Until then, this reaps the processes that lost their parent.
read -r _ || true
