{{- define "rankskew.selector" -}}
app.kubernetes.io/name: rankskew
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rankskew.labels" -}}
{{ include "rankskew.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "rankskew.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
