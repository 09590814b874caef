"use strict";

const TEXTS = {
  en: {
    try: "Try it", token: "Token", input: "Input: a text, or JSON", file: "Input: a file", send: "Predict",
    routes: "Routes", shell: "From a shell", schema: "Result", other: "中文",
    predict: "predictions for one input or many", health: "whether the server answers, and its counters",
    failed: "The server does not answer.", empty: "Choose a file first.",
  },
  zh: {
    try: "试一试", token: "令牌", input: "输入：一段文本，或 JSON", file: "输入：一个文件", send: "预测",
    routes: "接口", shell: "在命令行中", schema: "结果", other: "English",
    predict: "预测一个或多个输入", health: "服务是否正常，以及计数",
    failed: "服务没有应答。", empty: "请先选择文件。",
  },
};

const find = (id) => document.getElementById(id);
let language = (navigator.language || "en").startsWith("zh") ? "zh" : "en";
let openapi = null;

const needsFile = () => openapi !== null && Object.keys(contents()).some((type) => type !== "application/json");
const contents = () => openapi.paths["/predict"].post.requestBody.content;

function translate() {
  const texts = TEXTS[language];
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts[element.dataset.text];
  find("language").textContent = texts.other;
  if (needsFile()) find("input-label").textContent = texts.file;
  const routes = [["POST /predict", texts.predict], ["GET /health", texts.health], ["GET /openapi.json", "OpenAPI 3.1"]];
  find("routes").replaceChildren(...routes.map(([route, text]) => {
    const row = document.createElement("tr");
    for (const content of [route, text]) row.append(Object.assign(document.createElement("td"), { textContent: content }));
    return row;
  }));
}

function show() {
  const token = openapi.components.securitySchemes !== undefined;
  find("title").textContent = document.title = openapi.info.title;
  find("token").hidden = document.querySelector("label[for=token]").hidden = !token;
  find("input").hidden = needsFile();
  find("file").hidden = !needsFile();
  find("input-label").htmlFor = needsFile() ? "file" : "input";
  const example = contents()["application/json"].example;
  if (!needsFile()) find("input").value = typeof example.input === "string" ? example.input : JSON.stringify(example.input);
  const secret = token ? " -H 'Authorization: Bearer TOKEN'" : "";
  const type = Object.keys(contents()).find((name) => name !== "application/json") || "application/json";
  const data = needsFile() ? "--data-binary @FILE" : `-d '${JSON.stringify(example)}'`;
  find("shell").textContent = `curl ${location.origin}/predict${secret} -H 'Content-Type: ${type.replace("*", "png")}' ${data}`;
  find("schema").textContent = JSON.stringify(openapi.components.schemas.Result, null, 2);
  translate();
}

async function predict() {
  const headers = { "Content-Type": "application/json" };
  if (!find("token").hidden) headers.Authorization = `Bearer ${find("token").value}`;
  let body;
  if (needsFile()) {
    const file = find("file").files[0];
    if (!file) return void (find("answer").textContent = TEXTS[language].empty);
    headers["Content-Type"] = file.type || "application/octet-stream";
    body = file;
  } else {
    const text = find("input").value;
    let input = text;
    try { const parsed = JSON.parse(text); if (parsed !== null && typeof parsed === "object") input = parsed; } catch { /* a text */ }
    body = JSON.stringify(Array.isArray(input) ? { inputs: input } : { input });
  }
  try {
    const response = await fetch("/predict", { method: "POST", headers, body });
    find("answer").textContent = JSON.stringify(await response.json(), null, 2);
  } catch {
    find("answer").textContent = TEXTS[language].failed;
  }
}

find("send").addEventListener("click", predict);
find("language").addEventListener("click", () => { language = language === "en" ? "zh" : "en"; translate(); });
translate();
fetch("/openapi.json").then((response) => response.json()).then((document) => { openapi = document; show(); });
