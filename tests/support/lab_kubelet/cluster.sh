#!/bin/sh
# A laboratory's cluster on this machine: etcd, a real API server and its controllers, and the kubelet of main.go.
#
#   cluster.sh build DIR                       from Debian's source package `kubernetes` (1.20; deb-src of bookworm),
#                                              with golang-1.19-go: 40 minutes on two busy cores, 1.5 GB
#   cluster.sh start DIR                       needs etcd (Debian: etcd-server); then run the tests with
#                                              SPECDASH_KUBERNETES=DIR/kubeconfig
#   cluster.sh stop DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2/bin"
dir=$(cd "$2" && pwd)
tree=$dir/gopath/src/k8s.io/kubernetes

build() {
    cd "$dir"
    apt-get source --download-only kubernetes/bookworm
    mkdir -p "$tree"
    tar xzf kubernetes_*.orig.tar.gz --strip-components=1 -C "$tree"
    cd "$tree"
    export PATH="/usr/lib/go-1.19/bin:$PATH" GO111MODULE=off CGO_ENABLED=0 GOPATH="$dir/gopath" GOCACHE="$dir/cache"
    go build -o "$dir/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -l '+k8s:openapi-gen=' -r --include='*.go' pkg staging/src/k8s.io | xargs -n1 dirname |
        sed -e 's|^staging/src/|k8s.io/kubernetes/vendor/|' -e 's|^pkg|k8s.io/kubernetes/pkg|' |
        grep -v -e code-generator -e sample -e /testdata | sort -u | paste -sd,)
    "$dir/bin/openapi-gen" -h hack/boilerplate/boilerplate.generatego.txt -O zz_generated.openapi \
        -p k8s.io/kubernetes/pkg/generated/openapi -o "$dir/gopath/src" -r "$dir/report" --input-dirs "$inputs"
    mkdir -p cmd/lab-kubelet
    cp "$here/main.go" cmd/lab-kubelet/
    for program in kube-apiserver kube-controller-manager lab-kubelet; do
        nice go build -trimpath -ldflags '-s -w' -o "$dir/bin/$program" "./cmd/$program"
    done
}

run() {
    name=$1
    shift
    nohup "$@" >"$dir/$name.log" 2>&1 &
    echo $! >"$dir/$name.pid"
}

start() {
    cd "$dir"
    [ -e sa.key ] || openssl genrsa -out sa.key 2048
    printf '%s\n' 'lab-token,admin,admin,"system:masters"' 'other-token,other,other' >tokens.csv
    cat >kubeconfig <<END
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:6553", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: lab-token}}, {name: other, user: {token: other-token}}]
contexts:
  - {name: lab, context: {cluster: lab, user: admin, namespace: llama}}
  - {name: other, context: {cluster: lab, user: other, namespace: llama}}
current-context: lab
END
    run etcd etcd --data-dir etcd --listen-client-urls http://127.0.0.1:23791 \
        --advertise-client-urls http://127.0.0.1:23791 --listen-peer-urls http://127.0.0.1:23801 \
        --initial-advertise-peer-urls http://127.0.0.1:23801 --initial-cluster default=http://127.0.0.1:23801
    run apiserver bin/kube-apiserver --etcd-servers=http://127.0.0.1:23791 --secure-port=6553 --bind-address=127.0.0.1 \
        --cert-dir=certs --service-cluster-ip-range=10.99.0.0/24 --service-account-issuer=https://lab \
        --service-account-key-file=sa.key --service-account-signing-key-file=sa.key --token-auth-file=tokens.csv \
        --authorization-mode=RBAC --disable-admission-plugins=ServiceAccount --advertise-address=127.0.0.1
    until kubectl --kubeconfig kubeconfig get --raw /readyz >/dev/null 2>&1; do sleep 1; done
    kubectl --kubeconfig kubeconfig create namespace llama || true
    run controllers bin/kube-controller-manager --kubeconfig=kubeconfig --leader-elect=false --port=0 --secure-port=0 \
        --controllers=deployment,replicaset,garbagecollector,namespace
    mkdir -p logs
    run kubelet bin/lab-kubelet -kubeconfig kubeconfig -port 10261 -folder logs python3 -ISu "$here/../scripted_llama_server.py"
}

stop() {
    for name in kubelet controllers apiserver etcd; do
        [ ! -e "$dir/$name.pid" ] || kill "$(cat "$dir/$name.pid")" || true
        rm -f "$dir/$name.pid"
    done
}

"$1"
