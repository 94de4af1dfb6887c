{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "cairn.labels" -}}
app.kubernetes.io/name: cairn
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "cairn.selector" -}}
app.kubernetes.io/name: cairn
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "cairn.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "cairn.url" -}}
{{- if eq .Values.mode "ceph" -}}
{{- with .Values.store.ceph -}}
rados:{{ .pool }}{{ with .namespace }}/{{ . }}{{ end }}?conf=/etc/ceph/ceph.conf&user={{ .user }}&keyring=/etc/ceph-key/keyring
{{- with .dataPool }}&data-pool={{ . }}{{ end }}
{{- end -}}
{{- else -}}
dir:/var/lib/cairn/store
{{- end -}}
{{- end }}

{{- /* Not empty where the daemon has a certificate: for jobs by TCP, for browsers, or for both. */ -}}
{{- define "cairn.hasTls" -}}
{{- if or .Values.http.tls (ne .Values.mode "node") }}yes{{ end -}}
{{- end }}

{{- define "cairn.probe" -}}
httpGet: {path: /readyz, port: http{{ if .Values.http.tls }}, scheme: HTTPS{{ end }}}
{{- end }}

{{- define "cairn.podSecurity" -}}
runAsNonRoot: true
runAsUser: 64000
runAsGroup: 64000
fsGroup: 64000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cairn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Where a pod may run, and by what its image is pulled: the same for the daemon and for the jobs. */ -}}
{{- define "cairn.placement" -}}
{{- range $name := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" }}
{{- with get $.Values $name }}
{{ $name }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What the daemon and the command that makes its store have mounted. */ -}}
{{- define "cairn.mounts" -}}
- {name: config, mountPath: /etc/cairn, readOnly: true}
{{- if eq .Values.mode "ceph" }}
- {name: ceph, mountPath: /etc/ceph, readOnly: true}
- {name: ceph-key, mountPath: /etc/ceph-key, readOnly: true}
{{- else }}
- {name: store, mountPath: /var/lib/cairn}
{{- end }}
{{- if eq .Values.mode "node" }}
- {name: socket, mountPath: /run/cairn}
{{- end }}
{{- if include "cairn.hasTls" . }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- if .Values.http.tls }}
- {name: http, mountPath: /http, readOnly: true}
{{- end }}
{{- end }}

{{- /* The pod of the daemon, the same in a StatefulSet, a Deployment and a DaemonSet. */ -}}
{{- define "cairn.pod" -}}
metadata:
  labels:
    {{- include "cairn.selector" . | nindent 4 }}
  annotations:
    # A changed configuration restarts the daemon; open saves go on with the next one.
    checksum/config: {{ include (print $.Template.BasePath "/configmap.yaml") . | sha256sum }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "cairn.podSecurity" . | nindent 4 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with include "cairn.placement" . | trim }}{{ . | nindent 2 }}{{ end }}
  {{- if eq .Values.mode "ceph" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector: {matchLabels: {{ include "cairn.selector" . | fromYaml | toJson }}}
  {{- end }}
  {{- if .Values.store.create }}
  initContainers:
    - name: create
      {{- include "cairn.image" . | nindent 6 }}
      command: ["cairn", "store", "create", "--if-missing", {{ include "cairn.url" . | quote }}]
      securityContext:
        {{- include "cairn.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "cairn.mounts" . | nindent 8 }}
  {{- end }}
  containers:
    - name: cairnd
      {{- include "cairn.image" . | nindent 6 }}
      command: ["cairnd", "--config", "/etc/cairn/cairnd.conf"]
      {{- if eq .Values.mode "ceph" }}
      args: ["--listen-advertise", "$(POD_IP):{{ .Values.port }}"]
      env:
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- end }}
      ports:
        {{- if ne .Values.mode "node" }}
        - {name: cairn, containerPort: {{ .Values.port }}}
        {{- end }}
        - {name: http, containerPort: {{ .Values.httpPort }}}
      # A start reads the record of every run. A daemon that refuses saves stays ready: restores and `cairn forget` need it.
      startupProbe:
        {{- include "cairn.probe" . | nindent 8 }}
        periodSeconds: 5
        failureThreshold: 60
      readinessProbe:
        {{- include "cairn.probe" . | nindent 8 }}
        periodSeconds: 5
      lifecycle:
        preStop:
          sleep: {seconds: 5}  # the service takes this pod out before the daemon stops to listen
      resources: {{ toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "cairn.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "cairn.mounts" . | nindent 8 }}
  volumes:
    - name: config
      configMap: {name: {{ .Release.Name }}-config}
    {{- if eq .Values.mode "ceph" }}
    - name: ceph
      configMap: {name: {{ .Values.store.ceph.configMap }}}
    - name: ceph-key
      secret: {secretName: {{ .Values.store.ceph.keyringSecret }}, defaultMode: 0440}
    {{- end }}
    {{- if eq .Values.mode "node" }}
    - name: store
      hostPath: {path: {{ .Values.store.node.path }}, type: Directory}
    - name: socket
      hostPath: {path: {{ .Values.store.node.socket }}, type: Directory}
    {{- end }}
    {{- if include "cairn.hasTls" . }}
    - name: tls
      secret: {secretName: {{ .Values.tls.serverSecret }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.http.tls }}
    - name: http
      secret: {secretName: {{ .Values.http.tokenSecret }}, defaultMode: 0440}
    {{- end }}
{{- end }}

{{- /* A CronJob that runs one command against the server: list of root, name, schedule, command, limit in seconds, retries. */ -}}
{{- define "cairn.job" -}}
{{- $root := index . 0 -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ $root.Release.Name }}-{{ index . 1 }}
  labels:
    {{- include "cairn.labels" $root | nindent 4 }}
spec:
  schedule: {{ index . 2 | quote }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      backoffLimit: {{ index . 5 }}
      activeDeadlineSeconds: {{ index . 4 }}
      template:
        metadata:
          labels: {{ toYaml $root.Values.networkPolicy.clientLabels | nindent 12 }}
        spec:
          restartPolicy: Never
          automountServiceAccountToken: false
          {{- with include "cairn.placement" $root | trim }}{{ . | nindent 10 }}{{ end }}
          securityContext:
            {{- include "cairn.podSecurity" $root | nindent 12 }}
          containers:
            - name: cairn
              {{- include "cairn.image" $root | nindent 14 }}
              command: {{ index . 3 | toJson }}
              env:
                - {name: CAIRN_SERVER, value: "{{ $root.Release.Name }}:{{ $root.Values.port }}"}
                - {name: CAIRN_CA_FILE, value: /tls/ca.crt}
                - {name: CAIRN_CERT_FILE, value: /tls/tls.crt}
                - {name: CAIRN_KEY_FILE, value: /tls/tls.key}
              resources:
                requests: {cpu: 50m, memory: 64Mi}
                limits: {memory: 256Mi}
              securityContext:
                {{- include "cairn.containerSecurity" $root | nindent 16 }}
              volumeMounts:
                - {name: tls, mountPath: /tls, readOnly: true}
          volumes:
            - name: tls
              secret: {secretName: {{ $root.Values.tls.clientSecret }}, defaultMode: 0440}
{{- end }}
