import{c as O,d as v}from"./chunk-ROGPPYWF.js";import{a as K}from"./chunk-3MGFBNDF.js";import{K as g,L as b,n as I,r as p}from"./chunk-WJJX7JZ4.js";import{g as T,i as D,k as M,o as A}from"./chunk-QFE2ZRCK.js";import{a as _,d as N,e as E,f as d,h as l,i as f,j as i,k as u,n as h}from"./chunk-KHEEUZC5.js";import"./chunk-J3TXAQ4B.js";import{a as x}from"./chunk-4PC5ZWBK.js";import"./chunk-KNIVK2F3.js";import"./chunk-FVHBRY3X.js";import"./chunk-BWZWJJRS.js";import"./chunk-E3BQTMXS.js";import{e as C}from"./chunk-CEAMIZB5.js";import{g as e}from"./chunk-D7T4XN55.js";var B=16;function V(t){if(typeof t!="object"||t===null)return null;let{temperature:n,top_p:o,top_k:r,min_p:a,repetition_penalty:s,from:m}=t;return{temperature:l(n),top_p:l(o),top_k:l(r),min_p:l(a),repetition_penalty:l(s),from:J(m)}}function J(t){if(typeof t!="object"||t===null)return{};let n=Object.entries(t).slice(0,B);return Object.fromEntries(n.filter(o=>typeof o[1]=="string"))}var R="loquent:presets",q=100,k=_(P());function L(t){let n=P().filter(({name:o})=>o!==t.name);$([...n,t].sort((o,r)=>o.name.localeCompare(r.name)))}function F(t){$(P().filter(n=>n.name!==t))}function $(t){E("device",R,t),k.value=t}function P(){let t=N("device",R);return(Array.isArray(t)?t:[]).slice(0,q).flatMap(n=>d(n)??[])}function W(){let{preset:t}=p.value,n=k.value,o=t!==null&&n.every(({name:a})=>a!==t.name),r=a=>{let{value:s}=a.currentTarget;s!==t?.name&&g(n.find(({name:m})=>m===s)??null)};return e("fieldset",{children:[e("legend",{children:"Preset"}),e("label",{class:"row",title:"A system prompt and parameters under a name, for this conversation",children:[e("span",{children:"In use"}),e("select",{id:"preset",value:t?.name??"",onChange:r,children:[e("option",{value:"",children:"none"}),o&&e("option",{value:t.name,children:t.name}),n.map(({name:a})=>e("option",{value:a,children:a},a))]})]}),e(Q,{preset:t},t?.name??""),e("p",{class:"faint",children:G(t,n)})]})}function G(t,n){if(t===null)return"What is below holds for all conversations of this tab without a preset.";let o=n.find(({name:a})=>a===t.name);return JSON.stringify(o)===JSON.stringify(t)?"What is below holds for this conversation alone.":"What is below holds for this conversation alone, until it is saved."}function Q({preset:t}){let n=C(null),o=()=>{let s=d({...u(p.peek()),name:n.current?.value});if(s===null)return n.current?.focus();L(s),g(s),I(`Saved “${s.name}”.`)},r=s=>{F(s),g(null)},a=s=>{s.key!=="Enter"||K(s)||(s.preventDefault(),o())};return e("div",{class:"keeper",children:[e("input",{id:"preset-name",ref:n,"aria-label":"Name of the preset",placeholder:"name",maxLength:60,defaultValue:t?.name??"",onKeyDown:a}),e("button",{id:"save-preset",type:"button",title:"Keeps the system prompt and the parameters on this device",onClick:o,children:"Save"}),t&&e(h,{icon:"trash",label:`Delete the preset “${t.name}”`,onClick:()=>r(t.name)})]})}var H=`/* What is in the panel of settings. Loaded with it, so that a first visit loads less. */

.settings > header {
  display: flex;
  align-items: center;
  justify-content: space-between;
}

.settings form {
  display: grid;
  gap: 1.1rem;
}

.settings fieldset {
  display: grid;
  gap: 0.5rem;
  min-width: 0;
  margin: 0;
  padding: 0;
  border: 0;
}

.settings legend {
  margin-bottom: 0.35rem;
  padding: 0;
  font-size: 0.85rem;
  font-weight: 600;
}

.settings .row {
  display: grid;
  grid-template-columns: 1fr 8.25rem;
  align-items: center;
  gap: 0.5rem;
  font-size: 0.9rem;
}

.settings .keeper {
  display: flex;
  gap: 0.35rem;
}

.keeper input {
  flex: 1;
  min-width: 0;
}

.settings .check {
  display: flex;
  gap: 0.6rem;
  font-size: 0.9rem;
  line-height: 1.4;
}

.settings .check input {
  flex: none;
}
`;x(H);var Z=[{name:"temperature",label:"Temperature",about:"0 always takes the likeliest token",min:0,max:2,step:.1},{name:"top_p",label:"Top p",about:"Samples from the likeliest tokens with this total probability",min:0,max:1,step:.05},{name:"top_k",label:"Top k",about:"Samples from so many likeliest tokens; 0: all",min:0,step:1},{name:"min_p",label:"Min p",about:"Drops tokens less likely than this share of the likeliest one",min:0,max:1,step:.05},{name:"repetition_penalty",label:"Repetition penalty",about:"Above 1 avoids repetition",min:.01,max:10,step:.05},{name:"max_tokens",label:"Max tokens",about:"Longest answer",min:1,step:1},{name:"seed",label:"Seed",about:"The same seed gives the same answer",min:0,step:1}];function Ke(){return e("aside",{class:"settings","aria-label":"Settings",children:[e("header",{children:[e("h2",{children:"Settings"}),e(h,{icon:"close",label:"Close settings",onClick:()=>O.value=!1})]}),e("form",{onSubmit:t=>t.preventDefault(),children:[e(W,{}),e(ee,{}),e(te,{}),e(ae,{}),e(se,{}),e(ie,{})]}),e("button",{type:"button",onClick:()=>v.value="models",children:"Models of this server"}),e("button",{type:"button",onClick:()=>v.value="shortcuts",children:"Keyboard shortcuts"}),e("p",{class:"faint",children:e("a",{href:"licenses.txt",children:"Licences of the libraries in this page"})})]})}function c({title:t,children:n}){return e("fieldset",{children:[e("legend",{children:t}),n]})}function ee(){let t=n=>b({system:n.currentTarget.value});return e(c,{title:"System prompt",children:e("label",{children:[e("span",{class:"unseen",children:"System prompt"}),e("textarea",{id:"system",rows:3,placeholder:"none",value:u(p.value).system,onInput:t})]})})}function te(){let t=V(D()?.samplingDefaults);return e(c,{title:"Parameters",children:[e("p",{class:"faint",children:"Empty ones are left to the server; its defaults are shown."}),Z.map(n=>e(re,{field:n,byDefault:j(n.name,t),title:oe(n,t)},n.name))]})}var ne={flag:"set by the server's operator",model:"from the model's file",vendor:"recommended by the model's vendor",default:"the server's default"};function oe({name:t,about:n},o){let r=ne[o?.from[t]??""];return r===void 0?n:`${n}. ${j(t,o)}: ${r}`}function j(t,n){if(t==="max_tokens")return"no limit";if(t==="seed")return"random";let o=n?.[t]??null;return t==="repetition_penalty"&&(o??1)===1?"off":o===null?"default":`${Number(o.toPrecision(3))}`}function re({field:t,byDefault:n,title:o}){let{name:r,label:a,about:s,...m}=t,{parameters:S}=u(p.value),z=X=>{let{valueAsNumber:w}=X.currentTarget;b({parameters:{...S,[r]:Number.isFinite(w)?w:null}})};return e("label",{class:"row",title:o,children:[e("span",{children:a}),e("input",{id:r.replace("_","-"),type:"number",placeholder:n,value:S[r]??"",onInput:z,...m})]})}function ae(){let{apiKey:t,delivery:n,pace:o,patience_s:r}=f.value;return e(c,{title:"Connection",children:[e("label",{class:"row",children:[e("span",{children:"API key"}),e("input",{id:"api-key",type:"password",autocomplete:"off",placeholder:"none",value:t,onInput:a=>i({apiKey:a.currentTarget.value}),onChange:A})]}),e("label",{class:"row",children:[e("span",{children:"Delivery"}),e("select",{id:"delivery",value:n,onChange:a=>i({delivery:a.currentTarget.value}),children:[e("option",{value:"auto",children:"automatic"}),e("option",{value:"webtransport",children:"WebTransport"}),e("option",{value:"sse",children:"SSE"})]})]}),e("label",{class:"row",title:"Smooth hides most stalls of the network for a small delay",children:[e("span",{children:"Pacing"}),e("select",{id:"pace",value:o,onChange:a=>i({pace:a.currentTarget.value}),children:[e("option",{value:"smooth",children:"smooth"}),e("option",{value:"off",children:"show at once"})]})]}),e("label",{class:"row",title:"How long an answer may bring nothing before the page gives it up; 0 is for ever",children:[e("span",{children:"Patience, seconds"}),e("input",{id:"patience",type:"number",min:0,step:10,value:r,onInput:a=>i({patience_s:Math.max(0,a.currentTarget.valueAsNumber||0)})})]})]})}function se(){let{markdown:t,pauses:n,readingPace:o}=f.value;return e(c,{title:"Display",children:[e(y,{id:"markdown",checked:t,onChange:r=>i({markdown:r}),label:"Show Markdown formatted"}),e(y,{id:"pauses",checked:n,onChange:r=>i({pauses:r}),label:"Mark pauses in the text"}),M()&&e(y,{id:"reading-pace",checked:o,onChange:r=>i({readingPace:r}),label:`Show the answers of ${T} at reading speed`})]})}function ie(){return e(c,{title:"On this device",children:[e(y,{id:"keep",checked:f.value.isKept,onChange:t=>i({isKept:t}),label:"Keep these settings and the API key on this device"}),e("p",{class:"faint",children:"Without this they last as long as the tab. Conversations never leave this device."})]})}function y({id:t,checked:n,label:o,onChange:r}){return e("label",{class:"check",children:[e("input",{id:t,type:"checkbox",checked:n,onChange:a=>r(a.currentTarget.checked)}),e("span",{children:o})]})}export{Ke as SettingsPanel};
