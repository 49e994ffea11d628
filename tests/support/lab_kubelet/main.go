// A kubelet for a laboratory: it binds every pod to its one node, runs the first container as a process of this machine
// (its command, or the words after the flags), and serves logs and port-forwards to the API server. With a real API
// server and a real controller manager it makes a cluster that needs no container runtime. docs/kubernetes.md says how it
// is built: in the source tree of Kubernetes 1.20, whose packages it uses.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"io/ioutil"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/kubelet/cri/streaming/portforward"
)

const node = "lab"

type process struct {
	mu       sync.Mutex
	command  *exec.Cmd
	began    metav1.Time
	ended    bool
	code     int32
	restarts int32
	again    time.Time
	killed   bool
}

var (
	client    *kubernetes.Clientset
	folder    string
	image     []string
	processes = map[types.UID]*process{}
	all       sync.Mutex
)

func logFile(uid types.UID, previous bool) string {
	name := string(uid) + ".log"
	if previous {
		name += ".previous"
	}
	return filepath.Join(folder, name)
}

func variables(pod *v1.Pod) ([]string, error) {
	found := os.Environ()
	ctx := context.Background()
	container := pod.Spec.Containers[0]
	for _, source := range container.EnvFrom {
		if source.ConfigMapRef != nil {
			made, err := client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, source.ConfigMapRef.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			for key, value := range made.Data {
				found = append(found, key+"="+value)
			}
		}
		if source.SecretRef != nil {
			made, err := client.CoreV1().Secrets(pod.Namespace).Get(ctx, source.SecretRef.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			for key, value := range made.Data {
				found = append(found, key+"="+string(value))
			}
		}
	}
	for _, entry := range container.Env {
		found = append(found, entry.Name+"="+entry.Value)
	}
	return found, nil
}

func (p *process) begin(pod *v1.Pod) error {
	environment, err := variables(pod)
	if err != nil {
		return err
	}
	container := pod.Spec.Containers[0]
	words := append(append([]string{}, container.Command...), container.Args...)
	if len(container.Command) == 0 {
		words = append(append([]string{}, image...), container.Args...)
	}
	os.Rename(logFile(pod.UID, false), logFile(pod.UID, true))
	output, err := os.Create(logFile(pod.UID, false))
	if err != nil {
		return err
	}
	command := exec.Command(words[0], words[1:]...)
	command.Env, command.Stdout, command.Stderr = environment, output, output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return err
	}
	p.command, p.began, p.ended = command, metav1.Now(), false
	go func() {
		command.Wait()
		output.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = true
		status := command.ProcessState.Sys().(syscall.WaitStatus)
		p.code = int32(status.ExitStatus())
		if status.Signaled() {
			p.code = 128 + int32(status.Signal())
		}
		p.again = time.Now().Add(time.Duration(p.restarts*10) * time.Second)
	}()
	return nil
}

func step(pod *v1.Pod) {
	ctx := context.Background()
	pods := client.CoreV1().Pods(pod.Namespace)
	if pod.Spec.NodeName == "" {
		binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: v1.ObjectReference{Kind: "Node", Name: node}}
		pods.Bind(ctx, binding, metav1.CreateOptions{})
		return
	}
	all.Lock()
	p := processes[pod.UID]
	if p == nil {
		p = &process{}
		processes[pod.UID] = p
	}
	all.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	running := p.command != nil && !p.ended
	if pod.DeletionTimestamp != nil {
		if running && !p.killed {
			p.killed = true
			p.command.Process.Signal(syscall.SIGTERM)
		} else if running && time.Now().After(pod.DeletionTimestamp.Time) {
			p.command.Process.Kill()
		} else if !running {
			now := int64(0)
			pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		return
	}
	container := pod.Spec.Containers[0]
	status := v1.ContainerStatus{Name: container.Name, Image: container.Image, RestartCount: p.restarts}
	last := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: p.code, Reason: "Error", StartedAt: p.began}}
	if p.command != nil && p.ended && time.Now().Before(p.again) {
		status.State.Waiting = &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off restarting failed container"}
		status.LastTerminationState = last
	} else if !running {
		again := p.command != nil
		if err := p.begin(pod); err != nil {
			status.State.Waiting = &v1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
		} else {
			if again {
				p.restarts++
				status.RestartCount = p.restarts
				status.LastTerminationState = last
			}
			running = true
		}
	} else if p.restarts > 0 {
		status.LastTerminationState = last
	}
	ready := v1.ConditionFalse
	if running {
		status.State.Running = &v1.ContainerStateRunning{StartedAt: p.began}
		ready = v1.ConditionTrue
	}
	status.Ready = running
	pod.Status.Phase = v1.PodRunning
	if status.State.Waiting != nil && p.command == nil {
		pod.Status.Phase = v1.PodPending
	}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{status}
	pod.Status.Conditions = nil
	for _, kind := range []v1.PodConditionType{v1.PodScheduled, v1.PodInitialized} {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: kind, Status: v1.ConditionTrue})
	}
	for _, kind := range []v1.PodConditionType{v1.ContainersReady, v1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: kind, Status: ready})
	}
	pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

type forwarder struct{}

func (forwarder) PortForward(_ string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	there, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer there.Close()
	go func() { io.Copy(there, stream); there.(*net.TCPConn).CloseWrite() }()
	io.Copy(stream, there)
	return nil
}

func serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 {
		http.NotFound(w, r)
		return
	}
	pod, err := client.CoreV1().Pods(parts[1]).Get(context.Background(), parts[2], metav1.GetOptions{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	switch parts[0] {
	case "portForward":
		options, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, forwarder{}, pod.Name, pod.UID, options, time.Hour, time.Minute, portforward.SupportedProtocols)
	case "containerLogs":
		content, err := ioutil.ReadFile(logFile(pod.UID, r.URL.Query().Get("previous") == "true"))
		if err != nil {
			http.Error(w, "there is no log", http.StatusBadRequest)
			return
		}
		if tail, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
			lines := bytes.SplitAfter(content, []byte("\n"))
			if len(lines) > tail+1 {
				content = bytes.Join(lines[len(lines)-tail-1:], nil)
			}
		}
		w.Write(content)
	default:
		http.NotFound(w, r)
	}
}

func certificate() tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	made, _ := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}
}

func main() {
	config := flag.String("kubeconfig", "", "")
	port := flag.Int("port", 10250, "")
	flag.StringVar(&folder, "folder", "", "where logs go")
	flag.Parse()
	image = flag.Args()
	given, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		panic(err)
	}
	given.QPS, given.Burst = 200, 200
	client = kubernetes.NewForConfigOrDie(given)
	ctx := context.Background()
	own := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	client.CoreV1().Nodes().Create(ctx, own, metav1.CreateOptions{})
	own, err = client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		panic(err)
	}
	own.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "127.0.0.1"}}
	own.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(*port)
	own.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	if _, err = client.CoreV1().Nodes().UpdateStatus(ctx, own, metav1.UpdateOptions{}); err != nil {
		panic(err)
	}
	server := &http.Server{
		Addr:         fmt.Sprintf("127.0.0.1:%d", *port),
		Handler:      http.HandlerFunc(serve),
		TLSConfig:    &tls.Config{Certificates: []tls.Certificate{certificate()}},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	go func() { panic(server.ListenAndServeTLS("", "")) }()
	for {
		list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err == nil {
			for index := range list.Items {
				step(&list.Items[index])
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}
